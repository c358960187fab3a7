"""The Fashion-MNIST page as a script, without a browser: what it shows, and what it survives."""

import json
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.testing.v1 import AppTest

from labcore import classification_charts as charts
from labcore.calibration import Speed, calibrate
from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_charts import HERE, NOTES
from labcore.classification_history import ClassificationHistory
from labcore.config import format_fields, ruled_fields
from labcore.datasets import download as downloading
from labcore.datasets import fashion_mnist
from labcore.datasets.fashion_mnist import CLASSES, EMBEDDED, FULL, ROLES, SAMPLE
from labcore.events import Diverged, EpochEvaluated
from labcore.exports import epochs_csv, points_csv, run_json
from labcore.jobs import pool
from labcore.models import MODELS
from labcore.pictures import png, svg
from labcore.replicas import PHASES
from labcore.reported import FASHION_MNIST_RUNS
from labcore.rerun import script
from labui import classification_form, data_panel
from labui.classification_form import CLASSROOM, Detail, preset_of
from labui.run_list import MOST_PINNED, MOST_RUNS, Run
from tests.test_pages import (
    HOME,
    OPTIMIZERS_PAGE,
    ROOT,
    button,
    elements,
    enabled,
    errors,
    has_moved,
    notices,
    number_field,
    press,
    progress,
    rerun_until,
    state,
    step,
)
from tests.test_pages import LONG as LONG_RACE

PAGE = "pages/fashion_mnist.py"
SETTINGS = {"images": "100", "batch_size": "10", "epochs": "2", "replicas": "2"}
CONFIG = ClassificationConfig(images=100, batch_size=10, epochs=2, replicas=2)
LONG = {"images": "6000", "batch_size": "20", "epochs": "100", "replicas": "2"}
"""A run that no test waits for."""
DETAILS = next(rule for each, rule in ruled_fields(Detail) if each.name == "detail").options


@pytest.fixture(autouse=True, scope="module")
def same_everywhere():
    """The same images on every machine, half a second per pass, and no trial of large models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_DATA_DIR", str(EMBEDDED))
        patch.setattr(classification_form, "calibrate", lambda model, cores: Speed(0.5, 0.0))
        yield


@pytest.fixture
def all_images(monkeypatch):
    """As where all 60,000 images are there: as many labels, which is all that a form asks for."""
    sample = fashion_mnist.load(EMBEDDED)
    everything = replace(
        sample,
        train_labels=sample.train_labels.repeat(10),
        source=f"somewhere ({FULL}, in a folder)",
    )
    monkeypatch.setattr(fashion_mnist, "load", lambda: everything)


def opened(page=PAGE, **query):
    app = AppTest.from_file(str(ROOT / HOME), default_timeout=60)
    app.query_params = query
    app.switch_page(page)
    return app.run()


@pytest.fixture
def visit(visit):
    """Opens this page, or another one."""

    def open_page(page=PAGE, **query):
        return visit(page, **query)

    return open_page


def finished(app):
    press(app, "Start")
    return rerun_until(app, lambda app: state(app) == "Finished")


def go_to(app, page):
    """As by the sidebar: the URL's parameters are gone."""
    app.query_params = {}
    return app.switch_page(page).run()


def choice(app, label):
    return next(each for each in app.get("button_group") if each.label == label)


def choose(app, label, option):
    return choice(app, label).set_value(option).run()


def field(app, label):
    return next(each for each in app.text_input if each.label == label)


def job(app):
    return app.session_state["job:classify"]


def history_of(app):
    with job(app).reading() as history:
        return history.copy()


def rows(app, place):
    """The rows of the chart at that place: 0 is the loss, 1 the accuracy, 2 a detail's."""
    data = app.get("vega_lite_chart")[place].proto.data.data
    return convert_arrow_bytes_to_pandas_df(data).to_dict("records")


def measured(app, place):
    return [row for row in rows(app, place) if row["origin"] == HERE]


def spec(app, place):
    return json.loads(app.get("vega_lite_chart")[place].proto.spec)


def captions(app):
    return [each.value for each in app.caption]


def words(app):
    """Everything that the page says below its curves."""
    return " ".join(each.value for kind in (app.markdown, app.caption, app.info) for each in kind)


def train(config):
    history = ClassificationHistory(config, "")
    for event in train_classifier(config):
        history.add(event)
    return history


@pytest.fixture(scope="module")
def headless():
    """The same run without a page."""
    return train(CONFIG)


# --- start, pause, step, stop, reset --------------------------------------------------------------


def test_minibatches_are_those_of_a_headless_run(replicated, headless):
    app = replicated
    shown = [(row["step"], row["epochs"], row["loss"]) for row in measured(app, 0)]
    assert shown == [
        (each.step, pytest.approx(each.epochs), pytest.approx(each.loss, abs=1e-5))
        for each in headless.minibatches
    ]


def test_accuracies_are_those_of_a_headless_run(replicated, headless):
    app = replicated
    shown = [(row["epochs"], row["accuracy"]) for row in measured(app, 1)]
    assert shown == [(each.epoch, each.accuracy) for each in headless.epochs]


def test_summary_is_the_sentence_of_the_run(replicated):
    app = replicated
    sentence = str(history_of(app).outcome)
    assert any(sentence[1:] in each for each in captions(app))


def test_start_pressed_twice_quickly_starts_one_run(visit):
    app = visit(**LONG)
    start = button(app, "Start")
    start.click().run()
    begun = job(app)
    start.click().run()
    assert job(app) is begun


def test_pause_holds_the_run(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Pause")
    assert job(app).wait(5)
    held = progress(app.run())
    assert (state(app), progress(app.run())) == ("Paused", held)


def test_resume_goes_on_where_pause_held(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Pause")
    held = step(app)
    press(app, "Resume")
    assert step(rerun_until(app, lambda app: step(app) > held)) > held


def test_each_step_is_one_minibatch(visit):
    app = visit(**SETTINGS)
    seen = []
    for _ in range(3):
        press(app, "Step")
        rerun_until(app, lambda app: state(app) == "Paused" and "step" in progress(app))
        seen.append(step(app))
    assert seen == [1, 2, 3]


def test_stop_ends_the_run_and_keeps_its_curve(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Stop")
    assert (state(app), len(measured(app, 0)) > 0) == ("Stopped", True)


def test_reset_clears_the_picture(visit):
    app = press(press(visit(**SETTINGS), "Step"), "Reset")
    assert (progress(app), measured(app, 0)) == ("Ready", [])


def first_loss(app):
    press(app, "Step")
    rerun_until(app, lambda app: measured(app, 0) and state(app) == "Paused")
    return measured(app, 0)[0]["loss"]


def test_reset_gives_the_same_first_loss(visit):
    app = visit(**SETTINGS)
    first = first_loss(app)
    assert first_loss(press(app, "Reset")) == first


def test_new_seed_gives_another_first_loss(visit):
    app = visit(**SETTINGS)
    first = first_loss(app)
    assert first_loss(press(app, "New seed")) != first


def test_new_seed_shows_the_seed(visit):
    app = press(visit(**SETTINGS), "New seed")
    assert str(number_field(app, "Seed").value) == app.query_params["seed"] != "0"


def test_new_seed_in_mid_run_stops_it(visit):
    app = press(visit(**LONG), "Start")
    begun = job(app)
    press(app, "New seed")
    assert (begun.state, progress(app)) == ("stopped", "Ready")


def test_settings_changed_in_mid_run_leave_it_running(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    begun = job(app)
    number_field(app, "Epochs").set_value(3).run()
    assert (job(app) is begun, state(app)) == (True, "Running")


def test_settings_changed_in_mid_run_are_said_to_wait(visit):
    app = press(visit(**LONG), "Start")
    number_field(app, "Epochs").set_value(3).run()
    assert any("count from the next start" in each for each in captions(app))


def test_another_detail_is_no_changed_setting(visit):
    app = choose(press(visit(**LONG), "Start"), "Look at", "time")
    assert not any("count from the next start" in each for each in captions(app))


@pytest.mark.parametrize(
    ("steps_to", "usable"),
    [
        ([], {"Start", "Step", "New seed"}),
        (["Start"], {"Pause", "Step", "Stop", "Reset", "New seed"}),
        (["Start", "Pause"], {"Resume", "Step", "Stop", "Reset", "New seed"}),
        (["Start", "Stop"], {"Start", "Step", "Reset", "New seed"}),
        (["Start", "Reset"], {"Start", "Step", "New seed"}),
    ],
    ids=["ready", "running", "paused", "stopped", "reset"],
)
def test_buttons_that_can_be_used(visit, steps_to, usable):
    app = visit(**LONG)
    for label in steps_to:
        press(app, label)
    assert {each.label for each in app.button[:6] if not each.disabled} == usable


def test_progress_says_epoch_step_and_speed(replicated):
    app = replicated
    assert re.search(r"epoch 2\.00 of 2 · step 20 of 20 · [\d,]+ images/s$", progress(app))


def test_progress_of_a_paused_run_says_what_is_left(visit):
    app = press(visit(**SETTINGS), "Step")
    rerun_until(app, lambda app: state(app) == "Paused" and "step 1 " in progress(app))
    assert "of training left" in progress(app)


# --- other pages, other runs ----------------------------------------------------------------------


def test_leaving_and_coming_back_finds_the_run_going_on(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    before = step(app)
    go_to(app, HOME)
    go_to(app, PAGE)
    assert step(rerun_until(app, lambda app: step(app) > before)) > before


def test_leaving_and_coming_back_finds_the_settings(visit):
    app = visit(**WHOLE)
    go_to(app, HOME)
    assert go_to(app, PAGE).query_params == WHOLE


def steps_of_race(app):
    with app.session_state["job:race"].reading() as race:
        return race.taken.step if race.taken else 0


def test_race_of_the_other_page_goes_on_beside_a_run(visit):
    app = press(visit(OPTIMIZERS_PAGE, **LONG_RACE), "Start")
    go_to(app, PAGE)
    press(app, "Start")
    before = steps_of_race(app)
    rerun_until(app, lambda app: steps_of_race(app) > before and has_moved(app))
    assert app.session_state["job:race"].state == "running"


def test_stop_leaves_the_race_of_the_other_page_alone(visit):
    app = press(visit(OPTIMIZERS_PAGE, **LONG_RACE), "Start")
    press(press(go_to(app, PAGE), "Start"), "Stop")
    assert (job(app).state, app.session_state["job:race"].live) == ("stopped", True)


def test_second_run_of_a_session_begins_anew(visit):
    app = finished(visit(**SETTINGS))
    first = job(app)
    finished(app)
    assert (job(app) is first, len(measured(app, 0))) == (False, 20)


def test_second_run_of_a_session_is_listed_beside_the_first(visit):
    app = finished(finished(visit(**SETTINGS, detail="runs")))
    assert [row["origin"] for row in table(app)[:2]] == ["measured here"] * 2


def test_two_sessions_do_not_see_each_others_runs(visit):
    finished(visit(**SETTINGS))
    assert (progress(visit(**SETTINGS)), measured(visit(**SETTINGS), 0)) == ("Ready", [])


# --- presets --------------------------------------------------------------------------------------

PRESETS = {each.label: each for each in [*CLASSROOM, *map(preset_of, FASHION_MNIST_RUNS)]}
WHOLE = {
    "model": "resnet18_quarter",
    "replicas": "3",
    "images": "200",
    "batch_size": "12",
    "lr": "0.05",
    "momentum": "0.5",
    "scaling": "scaled",
    "warmup_epochs": "2.5",
    "epochs": "3",
    "initialisation": "he",
    "split": "balanced",
    "allreduce": "ring",
    "seed": "11",
    "engine": "processes",
    "batch_norm": "local",
    "equivalence": "on",
    "detail": "time",
}
WHOLE_CONFIG = ClassificationConfig(
    model="resnet18_quarter",
    replicas=3,
    images=200,
    batch_size=12,
    lr=0.05,
    momentum=0.5,
    scaling="scaled",
    warmup_epochs=2.5,
    epochs=3,
    initialisation="he",
    split="balanced",
    allreduce="ring",
    seed=11,
    engine="processes",
    equivalence="on",
)
every_preset = pytest.mark.parametrize("label", PRESETS)


def test_presets_have_names_of_their_own():
    assert len(PRESETS) == len(CLASSROOM) + len(FASHION_MNIST_RUNS)


@every_preset
def test_preset_sets_every_setting(visit, label):
    app = press(visit(**WHOLE), label)
    wanted = format_fields(ClassificationConfig(**PRESETS[label].settings))
    assert {name: app.query_params[name] for name in wanted} == wanted


@every_preset
def test_widgets_show_the_preset(visit, label):
    app = press(visit(**WHOLE), label)
    wanted = ClassificationConfig(**PRESETS[label].settings)
    shown = (
        choice(app, "Model").value,
        choice(app, "Initialisation").value,
        *(number_field(app, n).value for n in ("Devices", "Batch size", "Training images")),
        field(app, "Learning rate").value,
    )
    assert shown == (
        wanted.model,
        wanted.initialisation,
        *(wanted.replicas, wanted.batch_size, wanted.images),
        format_fields(wanted)["lr"],
    )


@every_preset
def test_preset_can_start(visit, all_images, label):
    assert errors(press(visit(**WHOLE), label)) == []


def test_preset_keeps_what_is_looked_at(visit):
    assert press(visit(**WHOLE), "LeNet, a minute").query_params["detail"] == "time"


def test_preset_leaves_a_running_run_alone(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "LeNet, a minute")
    assert state(app) == "Running"


@pytest.mark.parametrize("run", FASHION_MNIST_RUNS, ids=lambda run: preset_of(run).label)
def test_reported_preset_dots_in_what_the_notes_report(visit, all_images, run):
    app = press(visit(**WHOLE), preset_of(run).label)
    shown = [row["accuracy"] for row in rows(app, 1) if row["origin"] == NOTES]
    assert shown == list(run.curve or [run.accuracy] * 10)


@pytest.mark.parametrize("run", FASHION_MNIST_RUNS, ids=lambda run: preset_of(run).label)
def test_reported_preset_says_what_the_notes_report(visit, all_images, run):
    app = press(visit(**WHOLE), preset_of(run).label)
    said = f"the notes report {run.accuracy:.2f} at {run.seconds_per_epoch} s/epoch"
    assert any(said in each for each in captions(app))


@pytest.mark.parametrize("preset", CLASSROOM, ids=lambda preset: preset.label)
def test_classroom_preset_has_nothing_reported(visit, preset):
    app = press(visit(**WHOLE), preset.label)
    assert [row for row in rows(app, 1) if row["origin"] == NOTES] == []


def test_preset_of_the_notes_shows_their_values_without_their_images(visit):
    app = press(visit(**WHOLE), preset_of(FASHION_MNIST_RUNS[0]).label)
    assert {row["accuracy"] for row in rows(app, 1) if row["origin"] == NOTES} == {0.76}


NOTES_SETTINGS = format_fields(ClassificationConfig(**preset_of(FASHION_MNIST_RUNS[0]).settings))
OTHER_THAN_THE_NOTES = {
    "model": "resnet18_quarter",
    "replicas": "2",
    "images": "6000",
    "batch_size": "128",
    "lr": "0.1",
    "momentum": "0.9",
    "epochs": "9",
    "initialisation": "he",
}


@pytest.mark.parametrize("name", OTHER_THAN_THE_NOTES)
def test_other_settings_than_the_notes_have_nothing_reported(visit, all_images, name):
    """A run of the notes on one device, but for one setting."""
    app = visit(**NOTES_SETTINGS | {name: OTHER_THAN_THE_NOTES[name]})
    shown = {row["accuracy"] for row in rows(app, 1) if row["origin"] == NOTES}
    # On two devices the notes have another run of these settings.
    assert shown == ({0.83} if name == "replicas" else set())


@pytest.mark.parametrize(("name", "text"), [("seed", "7"), ("allreduce", "ring")])
def test_what_the_notes_do_not_fix_leaves_their_values_in(visit, all_images, name, text):
    app = visit(**NOTES_SETTINGS | {name: text})
    assert [row for row in rows(app, 1) if row["origin"] == NOTES]


# --- links ----------------------------------------------------------------------------------------


def test_the_link_differs_from_the_default_everywhere():
    defaults = {
        each.name: str(rule.default)
        for config in (ClassificationConfig, Detail)
        for each, rule in ruled_fields(config)
    }
    # The other batch norm needs GPUs.
    assert [name for name in defaults if WHOLE[name] == defaults[name]] == ["batch_norm"]


def test_link_decides_the_run(visit):
    app = press(visit(**WHOLE), "Step")
    assert history_of(app).config == WHOLE_CONFIG


def test_link_decides_the_detail(visit):
    assert choice(visit(**WHOLE), "Look at").value == "time"


def test_widgets_show_what_the_link_says(visit):
    app = visit(**WHOLE)
    kinds = (app.get("button_group"), app.number_input, app.text_input)
    shown = {str(each.value) for kind in kinds for each in kind}
    assert shown == set(WHOLE.values())


def test_good_link_gives_no_notice(visit):
    app = visit(**WHOLE)
    assert notices(app) + errors(app) == []


def test_url_names_the_whole_configuration(visit):
    assert visit(**WHOLE).query_params == WHOLE


def test_url_of_a_first_visit_names_the_defaults(visit):
    defaults = format_fields(ClassificationConfig()) | format_fields(Detail())
    assert visit().query_params == defaults


def test_another_link_followed_in_the_same_session_is_opened(visit):
    app = visit(**SETTINGS)
    app.query_params = WHOLE
    app.run()
    assert number_field(app, "Seed").value == 11


WRONG_LINKS = {
    "batch size 0": ("batch_size", "0", "64"),
    "batch size 60001": ("batch_size", "60001", "64"),
    "batch size abc": ("batch_size", "abc", "64"),
    "no device": ("replicas", "0", "4"),
    "17 devices": ("replicas", "17", "4"),
    "60001 images": ("images", "60001", "6000"),
    "99 images": ("images", "99", "6000"),
    "lr nan": ("lr", "nan", "0.1"),
    "lr abc": ("lr", "abc", "0.1"),
    "lr 1e9": ("lr", "1e9", "0.1"),
    "lr 0": ("lr", "0", "0.1"),
    "momentum 1": ("momentum", "1", "0"),
    "epochs 0": ("epochs", "0", "4"),
    "seed -1": ("seed", "-1", "0"),
    "unknown model": ("model", "vgg", "lenet"),
    "unknown split": ("split", "half", "chunk"),
    "unknown allreduce": ("allreduce", "gossip", "central"),
    "unknown detail": ("detail", "weights", "replicas"),
    "unknown setting": ("colour", "red", None),
}
wrong_links = pytest.mark.parametrize("case", WRONG_LINKS)


@wrong_links
def test_wrong_link_gives_a_notice(visit, case):
    name, text, _ = WRONG_LINKS[case]
    (notice,) = notices(visit(**{name: text}))
    assert repr(name if name == "colour" else text) in notice


@wrong_links
def test_wrong_link_gives_the_default(visit, case):
    name, text, default = WRONG_LINKS[case]
    assert visit(**{name: text}).query_params.get(name) == default


@wrong_links
def test_wrong_link_keeps_the_rest(visit, case):
    name, text, _ = WRONG_LINKS[case]
    app = visit(**{"seed": "11", "scaling": "scaled"} | {name: text})
    kept = {"seed": "11", "scaling": "scaled"} if name != "seed" else {"scaling": "scaled"}
    assert {each: app.query_params[each] for each in kept} == kept


# --- settings that do not go together -------------------------------------------------------------

TOGETHER = {
    "more devices than rows": ({"replicas": "4", "batch_size": "3"}, "4 devices for 3 rows"),
    "batch larger than the images": ({"images": "100", "batch_size": "101"}, "101 of 100"),
    "scaled batch larger than the images": (
        {"images": "100", "batch_size": "30", "replicas": "4", "scaling": "scaled"},
        "120 of 100",
    ),
    "a shard of one image": (
        {"model": "resnet18_deeper", "batch_size": "16", "replicas": "16"},
        "shards of at least 2 images",
    ),
}
not_together = pytest.mark.parametrize("case", TOGETHER)


@not_together
def test_settings_that_do_not_go_together_are_a_sentence_with_a_way_out(visit, case):
    query, cause = TOGETHER[case]
    (message,) = errors(visit(**query))
    assert cause in message
    assert "Try " in message


@not_together
def test_settings_that_do_not_go_together_cannot_start(visit, case):
    app = visit(**TOGETHER[case][0])
    assert (enabled(app, "Start"), enabled(app, "Step")) == (False, False)


@not_together
def test_settings_that_do_not_go_together_stay_as_they_are(visit, case):
    query, _ = TOGETHER[case]
    app = visit(**query)
    assert {name: app.query_params[name] for name in query} == query


def test_settings_that_do_not_go_together_leave_a_finished_run_on_show(visit):
    app = finished(visit(**SETTINGS))
    number_field(app, "Batch size").set_value(101).run()
    assert (len(measured(app, 0)), len(errors(app))) == (20, 1)


def test_refused_settings_keep_the_pinned_run_on_show(visit):
    app = pin(finished(visit(**SETTINGS, detail="runs")), 0)
    press(app, "Reset")
    number_field(app, "Batch size").set_value(101).run()
    assert (len(measured(app, 0)), len(errors(app))) == (20, 1)


def test_settings_that_do_not_go_together_leave_a_running_run_alone(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    number_field(app, "Batch size").set_value(1).run()
    assert (state(app), enabled(app, "Pause")) == ("Running", True)


def test_the_way_out_works(visit):
    app = visit(replicas="4", batch_size="3")
    number_field(app, "Batch size").set_value(4).run()
    assert (errors(app), enabled(app, "Start")) == ([], True)


# --- typing ---------------------------------------------------------------------------------------

bad_rates = pytest.mark.parametrize("text", ["nan", "abc", "1e9", "0", "-1", "", "inf"])


@bad_rates
def test_bad_learning_rate_gives_a_message(visit, text):
    app = visit(**SETTINGS)
    field(app, "Learning rate").input(text).run()
    assert any("lr must be" in each and repr(text) in each for each in errors(app))


@bad_rates
def test_run_cannot_start_with_a_bad_learning_rate(visit, text):
    app = visit(**SETTINGS)
    field(app, "Learning rate").input(text).run()
    assert not enabled(app, "Start")


@bad_rates
def test_bad_learning_rate_leaves_the_other_settings(visit, text):
    app = visit(**SETTINGS)
    before = app.query_params
    field(app, "Learning rate").input(text).run()
    assert app.query_params == before


def test_bad_learning_rate_leaves_a_running_run_alone(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    field(app, "Learning rate").input("abc").run()
    assert (state(app), len(measured(app, 0)) > 0) == ("Running", True)


def test_good_learning_rate_after_a_bad_one_starts(visit):
    app = visit(**SETTINGS)
    field(app, "Learning rate").input("abc").run()
    field(app, "Learning rate").input("0,02").run()
    assert (errors(app), app.query_params["lr"]) == ([], "0.02")
    assert enabled(app, "Start")


# --- a run that diverges --------------------------------------------------------------------------


@pytest.fixture
def diverged(visit):
    return finished(visit(**SETTINGS, lr="100"))


def test_diverged_run_says_where(diverged):
    outcome = history_of(diverged).outcome
    assert isinstance(outcome, Diverged)
    said = f"The loss grew to {outcome.loss:.2g} at step {outcome.step}, at learning rate 100."
    assert any(said in each for each in captions(diverged))


def test_diverged_run_keeps_its_curve(diverged):
    outcome = history_of(diverged).outcome
    assert [row["step"] for row in measured(diverged, 0)] == list(range(1, outcome.step))


@pytest.mark.parametrize("detail", DETAILS)
def test_diverged_run_has_every_detail(visit, detail):
    assert not finished(visit(**SETTINGS, lr="100", detail=detail)).exception


def test_diverged_run_is_listed_with_its_step(visit):
    app = finished(visit(**SETTINGS, lr="100", detail="runs"))
    assert table(app)[0]["origin"] == (
        f"measured here, diverged at step {history_of(app).outcome.step}"
    )


# --- the images -----------------------------------------------------------------------------------


more_than_the_sample = pytest.mark.parametrize("images", ["59999", "60000", "6001"])


@more_than_the_sample
def test_more_images_than_the_sample_has_are_a_sentence(visit, images):
    (message,) = errors(visit(**SETTINGS | {"images": images}))
    assert f"received {int(images):,}" in message
    assert "Try 6,000" in message


@more_than_the_sample
def test_more_images_than_the_sample_has_cannot_start(visit, images):
    app = visit(**SETTINGS | {"images": images})
    assert (enabled(app, "Start"), enabled(app, "Step")) == (False, False)


def test_more_images_than_the_sample_has_lose_nothing(visit):
    app = visit(**WHOLE | {"images": "59999"})
    number_field(app, "Training images").set_value(200).run()
    assert (app.query_params, enabled(app, "Start")) == (WHOLE, True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the sample, to be broken, under the user's name."""
    copy = tmp_path / "images"
    shutil.copytree(EMBEDDED, copy)
    monkeypatch.setenv("LAB_DATA_DIR", str(copy))
    return copy


def lose(folder):
    (folder / f"{next(iter(ROLES))}.gz").unlink()


def truncate(folder):
    file = folder / f"{next(iter(ROLES))}.gz"
    file.write_bytes(file.read_bytes()[:-1000])


def swap(folder):
    train, test = folder / "train-labels-idx1-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz"
    train.rename(folder / "aside")
    test.rename(train)
    (folder / "aside").rename(test)


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def remove(folder):
    shutil.rmtree(folder)


broken_folders = pytest.mark.parametrize("damage", [lose, truncate, swap, empty, remove])


@broken_folders
def test_broken_data_folder_is_one_sentence_that_names_it(visit, folder, damage):
    damage(folder)
    app = visit(**SETTINGS)
    (message,) = errors(app)
    assert str(folder) in message
    assert not app.exception


@broken_folders
def test_settings_outlive_a_broken_data_folder(visit, folder, monkeypatch, damage):
    damage(folder)
    app = visit(**WHOLE)
    monkeypatch.setenv("LAB_DATA_DIR", str(EMBEDDED))
    assert (app.run().query_params, errors(app)) == (WHOLE, [])


def test_run_outlives_a_broken_data_folder(visit, folder, monkeypatch):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    before = step(app)
    monkeypatch.setenv("LAB_DATA_DIR", str(folder / "nowhere"))
    assert len(errors(app.run())) == 1
    monkeypatch.setenv("LAB_DATA_DIR", str(folder))
    app.run()
    assert step(rerun_until(app, lambda app: step(app) > before)) > before


def test_page_says_which_images_it_uses(visit):
    assert any(SAMPLE in each for each in captions(visit()))


DOWNLOAD = "Download all 70,000 images"


def test_download_is_offered_where_only_the_sample_is_there(visit):
    assert enabled(visit(), DOWNLOAD)


def test_download_is_not_offered_where_all_images_are_there(visit, all_images):
    assert DOWNLOAD not in [each.label for each in visit().button]


@pytest.fixture
def no_network(folder, monkeypatch):
    """The images are fetched from a port of this machine that nobody listens at."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setattr(downloading, "MIRROR", f"http://127.0.0.1:{port}/")
        yield folder


def test_download_without_a_network_is_a_sentence_and_loses_nothing(visit, no_network):
    app = press(visit(**WHOLE), DOWNLOAD)
    (message,) = errors(app)
    assert "could not be downloaded: Connection refused. Check the network" in message
    assert (app.query_params, enabled(app, DOWNLOAD)) == (WHOLE, True)


def test_download_without_a_network_leaves_no_bar_behind(visit, no_network):
    app = press(visit(**SETTINGS), DOWNLOAD)
    assert [each.proto.text for each in app.get("progress")] == ["Ready"]


def test_full_disk_in_a_download_is_a_sentence(visit, folder, monkeypatch):
    def full(arriving, progress):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloading, "_fetch", full)
    (message,) = errors(press(visit(), DOWNLOAD))
    assert "No space left on device. Make sure that 31 MB fit into" in message


def test_download_that_works_is_used_at_once(visit, folder, monkeypatch):
    everything = replace(fashion_mnist.load(), source=f"somewhere ({FULL}, in a folder)")

    def download(progress):
        progress(1, 2)
        monkeypatch.setattr(fashion_mnist, "load", lambda: everything)

    monkeypatch.setattr(data_panel, "download", download)
    app = press(visit(), DOWNLOAD)
    assert any(FULL in each for each in captions(app))


# --- before the start -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "said"), [("2", "about 20 s"), ("12", "about 2 min"), ("1", "about 10 s")]
)
def test_estimate_is_shown_before_the_start(visit, epochs, said):
    # Ten steps on two devices, half a second each.
    assert any(said in each for each in captions(visit(**SETTINGS | {"epochs": epochs})))


def test_estimate_comes_from_a_trial_of_the_model(visit, monkeypatch):
    asked = []

    def trial(model, cores):
        asked.append((model, cores))
        return calibrate("lenet", 1)

    monkeypatch.setattr(classification_form, "calibrate", trial)
    visit(**SETTINGS, model="resnet18_quarter")
    assert set(asked) == {("resnet18_quarter", pool().cores)}


def test_page_says_why_the_notes_start_is_slow(visit):
    assert "stays at chance for its first 300 steps" in choice(visit(), "Initialisation").help


@pytest.mark.parametrize("detail", DETAILS)
def test_every_widget_explains_itself(visit, detail):
    app = finished(visit(**SETTINGS, detail=detail))
    # A table is drawn by what may be edited in it, and has no help of its own.
    widgets = elements(app, "id", "help")
    assert [each.label for each in widgets if not each.help] == []


@pytest.mark.parametrize("detail", DETAILS)
def test_every_detail_can_be_looked_at_before_the_start(visit, detail):
    app = visit(**SETTINGS, detail=detail)
    assert not app.exception


# --- curves ---------------------------------------------------------------------------------------


def test_charts_describe_themselves_by_the_runs_name(replicated):
    app = replicated
    (name,) = {row["run"] for row in measured(app, 0)}
    assert all(name in spec(app, place)["description"] for place in (0, 1))


def test_specifications_stand_still_while_a_run_goes_on(visit):
    app = press(visit(**SETTINGS), "Step")
    rerun_until(app, lambda app: measured(app, 0) and state(app) == "Paused")
    before = [spec(app, place) for place in (0, 1)]
    press(app, "Resume")
    rerun_until(app, lambda app: state(app) == "Finished")
    assert [spec(app, place) for place in (0, 1)] == before


def test_a_placement_on_the_cpu_is_called_logical(visit):
    assert any("2 replicas on the CPU (logical" in each for each in captions(visit(**SETTINGS)))


# --- detail: replicas -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replicated():
    """A finished run, only to be looked at."""
    return finished(opened(**SETTINGS))


def replicas_table(app):
    return app.dataframe[0].value.to_dict("list")


def test_replicas_are_those_of_the_last_step(replicated, headless):
    shown = replicas_table(replicated)
    last = headless.latest
    assert shown["rank"] == [0, 1]
    assert shown["rows"] == list(last.rows)
    assert [float(each) for each in shown["mean loss"]] == pytest.approx(last.losses, abs=2e-4)
    before, after = shown["gradient norm before"], shown["after the allreduce"]
    assert [float(each) for each in before] == pytest.approx(last.norms, abs=2e-4)
    assert [float(each) for each in after] == pytest.approx([last.norm] * 2, abs=2e-4)


def test_replicas_table_says_where_each_is(visit):
    assert replicas_table(visit(**SETTINGS))["device"] == ["cpu", "cpu"]


def test_an_empty_shard_has_no_loss(visit):
    app = finished(visit(**SETTINGS | {"batch_size": "13", "replicas": "8", "epochs": "1"}))
    shown = replicas_table(app)
    # The last minibatch has 9 rows: 2, 2, 2, 2, 1, and nothing for the other three.
    losses = [shown["mean loss"][rank] for rank in range(8)]
    assert [loss is None or loss != loss for loss in losses] == [
        rows == 0 for rows in shown["rows"]
    ]
    assert shown["rows"] == [2, 2, 2, 2, 1, 0, 0, 0]


def test_drift_between_replicas_is_nothing(replicated):
    assert "Largest difference between replicas: **0** (bitwise equal)" in words(replicated)


def test_difference_to_one_device_is_shown_where_it_is_asked_for(visit):
    app = finished(visit(**SETTINGS, equivalence="on"))
    shown = re.search(r"same run on one device: \*\*(\S+)\*\*", words(app))
    assert float(shown[1]) == float(f"{history_of(app).latest.difference:.2g}") < 1e-5


def test_difference_to_one_device_is_not_shown_unasked(replicated):
    assert "on one device: **" not in words(replicated)


def one_step(app):
    press(app, "Step")
    return rerun_until(app, lambda app: state(app) == "Paused" and "step 1 " in progress(app))


BATCH_NORM = "batch norm averages over each replica's own shard"


def test_residual_network_differs_and_the_page_says_why(visit):
    app = one_step(visit(**SETTINGS, model="resnet18_quarter", equivalence="on"))
    assert history_of(app).latest.difference > 1e-6
    assert BATCH_NORM in words(app)


@pytest.mark.parametrize(
    "query",
    [
        {"model": "lenet", "equivalence": "on"},
        {"model": "resnet18_quarter", "equivalence": "off"},
        {"model": "resnet18_quarter", "equivalence": "on", "replicas": "1"},
    ],
    ids=str,
)
def test_batch_norm_is_not_blamed_where_it_is_not_to_blame(visit, query):
    assert BATCH_NORM not in words(one_step(visit(**SETTINGS | query)))


# --- detail: where the time goes ------------------------------------------------------------------


def test_phases_are_those_of_the_run(visit):
    app = finished(visit(**SETTINGS, detail="time"))
    history = history_of(app)
    shown = {row["phase"]: row["milliseconds"] for row in rows(app, 2)}
    assert shown == {
        phase: pytest.approx(1e3 * history.phases[phase] / history.latest.step) for phase in PHASES
    }


def test_phases_are_compared_with_those_of_pinned_runs(visit):
    app = finished(visit(**SETTINGS, detail="runs"))
    pin(app, 0)
    finished(app)
    choose(app, "Look at", "time")
    assert len({row["run"] for row in rows(app, 2)}) == 2


def test_page_says_what_logical_replicas_cannot_show(visit):
    said = words(visit(**SETTINGS, detail="time"))
    assert "Logical replicas share this CPU" in said
    assert "cannot be seen here" in said


# --- detail: the numbers --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    """The tables of a finished run, only to be looked at."""
    app = finished(opened(**SETTINGS, detail="numbers"))
    return [each.value.to_dict("list") for each in app.dataframe]


def test_numbers_of_the_steps_are_those_of_the_run(tables, headless):
    assert tables[0]["step"] == [each.step for each in headless.minibatches]
    assert tables[0]["training loss"] == pytest.approx(
        [each.loss for each in headless.minibatches], abs=1e-5
    )


def test_numbers_of_the_epochs_are_those_of_the_run(tables, headless):
    shown = list(zip(tables[1]["epoch"], tables[1]["test accuracy"], strict=True))
    assert shown == [(each.epoch, each.accuracy) for each in headless.epochs]


# --- detail: what it learnt -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt():
    """A finished run, only to be looked at."""
    return finished(opened(**SETTINGS, detail="learnt"))


def gallery(app):
    return [each.caption for each in app.get("image")[0].proto.imgs]


def test_gallery_shows_the_models_predictions(learnt, headless):
    known = headless.learnt
    labels = fashion_mnist.load(EMBEDDED).test_labels[known.images]
    sure, predicted = known.probabilities.max(dim=1)
    wanted = [
        f"✓ {CLASSES[p]} {s:.0%}" if p == t else f"✗ {CLASSES[p]} {s:.0%}, is {CLASSES[t]}"
        for p, s, t in zip(predicted.tolist(), sure.tolist(), labels.tolist(), strict=True)
    ]
    assert sorted(gallery(learnt)) == sorted(wanted)


def test_gallery_shows_mistakes_first(learnt):
    marks = [caption[0] for caption in gallery(learnt)]
    assert marks == sorted(marks, key="✗✓".index)
    assert set(marks) == {"✗", "✓"}


def test_gallery_shows_the_surest_mistakes_first(learnt):
    sure = [int(re.search(r"(\d+)%", each)[1]) for each in gallery(learnt) if each[0] == "✗"]
    assert sure == sorted(sure, reverse=True)


def test_number_of_mistakes_is_that_of_the_confusion_matrix(learnt):
    confusion = history_of(learnt).epochs[-1].confusion
    total = sum(map(sum, confusion))
    wrong = total - sum(confusion[n][n] for n in range(10))
    assert f"({wrong} of {total} test images are wrong)" in words(learnt)


def test_confusion_matrix_is_that_of_the_last_epoch(learnt, headless):
    shown = {(row["true"], row["predicted"]): row["images"] for row in rows(learnt, 2)}
    confusion = headless.epochs[-1].confusion
    assert shown == {
        (CLASSES[i], CLASSES[j]): confusion[i][j] for i in range(10) for j in range(10)
    }


def test_accuracy_per_class_is_that_of_the_last_epoch(learnt, headless):
    shown = learnt.dataframe[0].value
    assert shown["class"].tolist() == list(CLASSES)
    assert shown["accuracy"].tolist() == list(headless.epochs[-1].class_accuracies)


def test_every_filter_of_the_first_convolution_is_shown(learnt, headless):
    assert len(learnt.get("image")[1:]) == len(headless.learnt.filters)


def test_before_the_first_epoch_there_is_nothing_learnt(visit):
    app = one_step(visit(**SETTINGS, detail="learnt"))
    assert "After the first epoch" in words(app)


# --- detail: all runs -----------------------------------------------------------------------------


def table(app):
    return app.dataframe[-1].value.to_dict("records")


def edited(app, **changes):
    """Rerun with edits of the table, which AppTest cannot make, as a browser would send them."""
    editor = app.dataframe[-1].proto.id
    by_app = app._tree.get_widget_states

    def states():
        found = by_app()
        edit = found.widgets.add()
        edit.id = editor
        rows = {row[1:]: values for row, values in changes.items()}
        edit.string_value = json.dumps({"edited_rows": rows})
        return found

    app._tree.get_widget_states = states
    return app.run()


def pin(app, row, pinned=True):
    return edited(app, **{f"r{row}": {"pin": pinned}})


def names(app):
    """The runs in the charts, in order."""
    return list(dict.fromkeys(row["run"] for row in measured(app, 0)))


def pins(app):
    return [row["pin"] for row in table(app) if row["run"] != "notes"]


@pytest.fixture
def two_runs(visit):
    app = finished(visit(**SETTINGS, detail="runs"))
    number_field(app, "Devices").set_value(1).run()
    return finished(app)


def test_table_says_what_was_run_and_how_well_it_did(two_runs):
    shown = [(row["devices"], row["batch"], row["lr"]) for row in table(two_runs)[:2]]
    assert shown == [(2, 10, 0.1), (1, 10, 0.1)]
    last = history_of(two_runs).epochs[-1]
    assert isinstance(last, EpochEvaluated)
    row = table(two_runs)[1]
    assert (row["accuracy"], row["s/epoch"]) == (last.accuracy, last.seconds_per_epoch)


def test_table_has_what_the_notes_report_labelled_as_such(visit):
    reported = [row for row in table(visit(**SETTINGS, detail="runs")) if row["run"] == "notes"]
    shown = [(r["model"], r["devices"], r["batch"], r["lr"], r["accuracy"]) for r in reported]
    assert shown == [
        (MODELS[each.model].label, each.devices, each.batch_size, each.lr, each.accuracy)
        for each in FASHION_MNIST_RUNS
    ]
    assert {row["origin"] for row in reported} == {"reported in the notes, on GPUs"}


def test_nothing_measured_is_labelled_as_reported(two_runs):
    assert {row["origin"] for row in table(two_runs)[:2]} == {"measured here"}


def test_run_in_hand_is_listed_as_not_finished(visit):
    app = press(visit(**LONG, detail="runs"), "Step")
    assert table(app)[0]["origin"] == "measured here, not finished"


def test_only_the_last_run_is_drawn_by_itself(two_runs):
    assert names(two_runs) == ["#" + table(two_runs)[1]["run"][1:] + " LeNet, k=1"]


def test_pinned_run_is_drawn_beside_the_last(two_runs):
    pin(two_runs, 0)
    assert [name.partition(" ")[2] for name in names(two_runs)] == ["LeNet, k=1", "LeNet, k=2"]


def test_pinned_run_is_ticked(two_runs):
    assert pins(pin(two_runs, 0)) == [True, False]


def test_pinned_run_keeps_its_curve(two_runs, headless):
    pin(two_runs, 0)
    pinned = names(two_runs)[1]
    shown = [row["loss"] for row in measured(two_runs, 0) if row["run"] == pinned]
    assert shown == pytest.approx([each.loss for each in headless.minibatches], abs=1e-5)


def test_unpinned_run_is_not_drawn(two_runs):
    pin(two_runs, 0)
    pin(two_runs, 0, False)
    assert len(names(two_runs)) == 1


def test_pinned_run_stays_when_another_starts(two_runs):
    pin(two_runs, 0)
    pinned = names(two_runs)[1]
    finished(two_runs)
    assert (len(names(two_runs)), pinned in names(two_runs)) == (2, True)


@pytest.mark.parametrize("label", ["Reset", "New seed"])
def test_pinned_last_run_stays_after(two_runs, label):
    pin(two_runs, 1)
    (pinned,) = names(two_runs)
    assert names(press(two_runs, label)) == [pinned]


def test_pins_of_reported_runs_change_nothing(two_runs):
    before = names(two_runs)
    assert names(pin(two_runs, 2)) == before
    assert not two_runs.exception


def remove_run(app, *chosen):
    app.multiselect[0].set_value(list(chosen)).run()
    return press(app, "Remove")


def test_removed_run_is_gone(two_runs):
    first = two_runs.multiselect[0].options[0]
    remove_run(two_runs, first)
    assert [row["devices"] for row in table(two_runs) if row["run"] != "notes"] == [1]


def test_removing_the_last_run_leaves_a_pinned_one_its_own_curve(two_runs, headless):
    pin(two_runs, 0)
    last, pinned = names(two_runs)
    remove_run(two_runs, last)
    shown = [row["loss"] for row in measured(two_runs, 0) if row["run"] == pinned]
    assert shown == pytest.approx([each.loss for each in headless.minibatches], abs=1e-5)


def test_pinned_run_cannot_be_removed(two_runs):
    pin(two_runs, 0)
    assert [name.rpartition(" ")[2] for name in two_runs.multiselect[0].options] == ["k=1"]


def test_nothing_chosen_can_not_be_removed(two_runs):
    assert not enabled(two_runs, "Remove")


def test_runs_of_a_session_outlive_a_visit_to_another_page(two_runs):
    before = [row["run"] for row in table(two_runs)]
    go_to(two_runs, HOME)
    assert [row["run"] for row in table(go_to(two_runs, PAGE))] == before


@pytest.fixture
def many_runs(visit, headless):
    """As many runs as can be pinned, all pinned, and one more."""
    app = visit(**SETTINGS, detail="runs")
    runs = [Run(number, headless, True) for number in range(1001, 1001 + MOST_PINNED)]
    app.session_state["runs"] = [*runs, Run(2000, headless)]
    return app.run()


def test_as_many_runs_are_drawn_as_can_be_pinned(many_runs):
    drawn = set(names(many_runs))
    assert {f"#{1001 + n} LeNet, k=2" for n in range(MOST_PINNED)} <= drawn


def test_one_pin_too_many_is_a_sentence(many_runs):
    (notice,) = notices(pin(many_runs, MOST_PINNED))
    assert f"room for {MOST_PINNED} pinned runs" in notice


def test_one_pin_too_many_loses_no_pin(many_runs):
    pin(many_runs, MOST_PINNED)
    assert pins(many_runs.run()) == [True] * MOST_PINNED + [False]


def test_a_long_session_keeps_its_pinned_and_latest_runs(visit, headless):
    app = visit(**SETTINGS, detail="runs")
    oldest = Run(1001, headless, True)
    others = [Run(number, headless) for number in range(1002, 1001 + MOST_RUNS)]
    app.session_state["runs"] = [oldest, *others]
    press(app.run(), "Step")
    kept = app.session_state["runs"]
    assert (len(kept), kept[0], others[0] in kept) == (MOST_RUNS, oldest, False)


# --- files ----------------------------------------------------------------------------------------


def offered(patch):
    """Collects what makes each file that a page offers, by its name."""
    makers = {}
    add = MediaFileManager.add_deferred

    def noted(manager, data_callable, *rest, **others):
        file_id = add(manager, data_callable, *rest, **others)
        makers[manager._deferred_callables[file_id]["filename"]] = data_callable
        return file_id

    patch.setattr(MediaFileManager, "add_deferred", noted)
    return makers


@pytest.fixture(scope="module")
def files():
    """What makes each file, and the run that it is of."""
    with pytest.MonkeyPatch.context() as patch:
        makers = offered(patch)
        return makers, history_of(finished(opened(**SETTINGS)))


def loss_picture(history):
    return charts.loss_spec(("run",), 2), charts.loss_columns({"run": history})


def accuracy_picture(history):
    columns = charts.accuracy_columns({"run": history}, None)
    return charts.accuracy_spec(("run",), 2, False), columns


FILES = {
    "steps.csv": points_csv,
    "epochs.csv": epochs_csv,
    "run.json": run_json,
    "rerun.py": lambda history: script(history.config),
    "loss.svg": lambda history: svg(*loss_picture(history)),
    "loss.png": lambda history: png(*loss_picture(history)),
    "accuracy.svg": lambda history: svg(*accuracy_picture(history)),
    "accuracy.png": lambda history: png(*accuracy_picture(history)),
}


def plain(content):
    """A file's content, but for the numbers that a renderer gives to its clipping paths."""
    return re.sub(r"clip\d+", "clip", content) if isinstance(content, str) else content


def test_page_offers_every_file(files):
    assert set(files[0]) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_file_is_what_labcore_makes(files, name):
    makers, history = files
    assert plain(makers[name]()) == plain(FILES[name](history))


def test_no_file_is_offered_before_a_run(visit, monkeypatch):
    makers = offered(monkeypatch)
    visit(**SETTINGS)
    assert makers == {}


# --- what goes wrong inside -----------------------------------------------------------------------


def test_exception_in_a_run_is_one_sentence_on_the_page(visit, monkeypatch):
    from labcore.replicas import Replica

    def update(self, *arguments):
        raise RuntimeError("boom")

    monkeypatch.setattr(Replica, "update", update)
    app = rerun_until(press(visit(**SETTINGS), "Start"), errors)
    (sentence,) = errors(app)
    assert "internal error (RuntimeError: boom)" in sentence


def test_the_lab_leaves_the_embedded_images_alone():
    assert {each.name for each in Path(EMBEDDED).iterdir()} == {
        "LICENSE",
        *(f"{name}.gz" for name in ROLES),
    }
