"""The pages as scripts, without a browser: what they show, and what every press and text does."""

import json
import re
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from labcore import regression
from labcore.charts import LossView
from labcore.config import format_fields, ruled_fields
from labcore.datasets import airfoil
from labcore.events import LossRecorded, RacerEvent, StepTaken
from labcore.jobs import pool
from labcore.links import format_racer
from labcore.optimizers import OPTIMIZERS, SGD, Adam
from labcore.race import MAX_RACERS, RaceConfig, Racer, race
from labcore.regression import RegressionSettings
from labcore.reported import AIRFOIL_PRESETS
from labcore.surface import SurfaceView
from labui.race_look import Look
from labui.run_panel import Pace
from labui.tuning_form import Tuning

ROOT = Path(__file__).parent.parent
HOME = "app.py"
OPTIMIZERS_PAGE = "pages/optimizers.py"
PAGES = [HOME, *sorted(f"pages/{file.name}" for file in (ROOT / "pages").glob("*.py"))]

every_page = pytest.mark.parametrize("script", PAGES)

FAST = {"engine": ["from scratch"], "pace": ["max"]}
LONG = {**FAST, "racer": ["sgd"], "epochs": ["10000"], "pace": ["500"]}
"""A race that no test waits for."""


@pytest.fixture
def damaged_data(tmp_path, monkeypatch):
    """The lab with a data file that lacks its last bytes."""
    file = tmp_path / airfoil.FILE.name
    file.write_bytes(airfoil.FILE.read_bytes()[:-10])
    monkeypatch.setattr(airfoil, "load", partial(airfoil.load, file))
    regression.exact_solution.cache_clear()
    yield file
    regression.exact_solution.cache_clear()


def button(app, label):
    return next(each for each in app.button if each.label == label)


def press(app, label):
    return button(app, label).click().run()


def enabled(app, label):
    return not button(app, label).disabled


def field(app, label, place=0):
    """The text field of that label in the racer's card at that place."""
    return [each for each in app.text_input if each.label == label][place]


def cards(app):
    """The racers' choices of an optimiser."""
    return [each for each in app.selectbox if re.fullmatch(r"Racer \d", each.label)]


def number_field(app, label):
    return next(each for each in app.number_input if each.label == label)


def progress(app):
    """The race's state in words, such as "Paused · step 3 of 600 · epoch 0.02"."""
    return app.get("progress")[0].proto.text


def state(app):
    return progress(app).partition(" · ")[0]


def step(app):
    return int(re.search(r"step ([\d,]+) of", progress(app))[1].replace(",", ""))


def rerun_until(app, wanted):
    """Rerun, as the browser's timer does, until the page is as wanted."""
    until = time.monotonic() + 20
    while not wanted(app):
        assert time.monotonic() < until, f"The page stayed at {progress(app)!r}."
        time.sleep(0.05)
        app.run()
    return app


def ended(app):
    return rerun_until(app, lambda app: state(app) == "Finished")


def has_moved(app):
    return state(app) == "Running" and "step" in progress(app) and step(app) > 0


def points(app):
    """The recorded losses as the page's table has them: (racer, step, epochs, loss)."""
    toggle = app.toggle(key="race points")
    if not toggle.value:
        toggle.set_value(True).run()
    table = app.dataframe[0].value
    columns = (table[name].tolist() for name in ("run", "step", "epochs", "loss (½ MSE)"))
    return list(zip(*columns, strict=True))


def spec(app):
    return json.loads(app.get("vega_lite_chart")[0].proto.spec)


def standings(app):
    return next(each.value for each in app.html if "<table" in each.value)


def unescaped(text):
    """Markdown as the browser shows it."""
    return re.sub(r"\\(.)", r"\1", text)


def notices(app):
    return [unescaped(each.value) for each in app.warning]


def errors(app):
    return [unescaped(each.value) for each in app.error]


# --- every page -----------------------------------------------------------------------------------


@every_page
def test_page_opens_without_an_exception(visit, script):
    assert not visit(script).exception


@every_page
def test_sidebar_leads_to_every_page(visit, script):
    linked = {link.proto.page for link in visit(script).sidebar.get("page_link")}
    assert linked == {"" if each == HOME else Path(each).stem for each in PAGES}


def elements(app, *fields):
    """What Streamlit sends of each element that has these fields."""
    protos = [element.proto for element in app if getattr(element, "proto", None)]
    return [each for each in protos if set(fields) <= set(each.DESCRIPTOR.fields_by_name)]


@every_page
def test_every_widget_explains_itself(visit, script):
    widgets = elements(visit(script), "id", "help")
    assert [each.label for each in widgets if not each.help] == []


def test_widgets_are_among_those_that_must_explain_themselves(visit):
    kinds = {type(each).__name__ for each in elements(visit(), "id", "help")}
    assert kinds >= {"Button", "NumberInput", "TextInput", "Selectbox", "ButtonGroup", "Checkbox"}


@every_page
def test_page_does_not_import_torchvision(script):
    code = f"""
import sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file({HOME!r}, default_timeout=60)
if {script!r} != {HOME!r}:
    app.switch_page({script!r})
assert not app.run().exception
print("torch" in sys.modules, "torchvision" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_pages_import_pandas_before_they_draw():
    """Streamlit imports it at the first chart, and other sessions' threads may meet half of it."""
    code = "import sys, labui.page; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr


def test_home_says_that_the_data_are_there(visit):
    machine = visit(HOME).table[0].value.to_string()
    assert "embedded and verified: 1,500 rows, 5 features" in machine


# --- start, pause, step, stop, reset --------------------------------------------------------------


def test_points_appear_after_start(visit):
    app = press(visit(**LONG), "Start")
    assert rerun_until(app, lambda app: len(points(app)) > 5)


def test_start_pressed_twice_quickly_starts_one_race(visit):
    app = visit(**LONG)
    # As the browser had it at the first press: not yet disabled at the second.
    start = button(app, "Start")
    start.click().run()
    job = app.session_state["job:race"]
    start.click().run()
    assert app.session_state["job:race"] is job


def test_start_is_over_while_the_race_runs(visit):
    assert not enabled(press(visit(**LONG), "Start"), "Start")


def test_pause_holds_the_race(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Pause")
    app.session_state["job:race"].wait(5)
    held = progress(app.run())
    time.sleep(0.2)
    assert (state(app), progress(app.run())) == ("Paused", held)


def test_resume_goes_on_where_pause_held(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Pause")
    held = step(app)
    press(app, "Resume")
    assert step(rerun_until(app, lambda app: step(app) > held)) > held
    assert state(app) == "Running"


def test_each_step_is_one_minibatch(visit):
    app = visit(**LONG)
    seen = [step(press(app, "Step")) for _ in range(4)]
    assert seen == [1, 2, 3, 4]


def test_a_step_leaves_the_race_paused(visit):
    assert state(press(visit(**LONG), "Step")) == "Paused"


def test_a_step_after_a_pause_is_one_minibatch(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Pause")
    app.session_state["job:race"].wait(5)
    held = step(app.run())
    assert step(press(app, "Step")) == held + 1


def test_stop_ends_the_race_and_keeps_its_points(visit):
    app = press(visit(**LONG), "Start")
    rerun_until(app, lambda app: len(points(app)) > 2)
    press(app, "Stop")
    assert (state(app), len(points(app)) > 2) == ("Stopped", True)


@pytest.fixture
def busy_worker():
    """The only worker is held by somebody else's step, until the test ends."""
    release = threading.Event()

    def events():
        release.wait(30)
        yield StepTaken(1, 0.0)

    job = pool().submit(events(), SimpleNamespace(add=lambda event: None), owner="somebody")
    while job.state == "queued":
        time.sleep(0.01)
    yield
    release.set()
    job.stop()
    assert job.wait(10)


def test_race_that_waits_says_its_place_in_line(visit, busy_worker):
    assert progress(press(visit(**LONG), "Start")) == "Waiting for a worker, number 1 in line"


def test_stop_before_the_first_point_is_no_error(visit, busy_worker):
    app = press(press(visit(**LONG), "Start"), "Stop")
    assert (state(app), points(app)) == ("Stopped", [])
    assert not app.exception


def test_start_after_stop_begins_anew(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Stop")
    stopped = app.session_state["job:race"]
    press(app, "Start")
    assert app.session_state["job:race"] is not stopped


def test_reset_clears_the_picture(visit):
    app = press(press(visit(**LONG), "Step"), "Reset")
    assert (progress(app), points(app)) == ("Ready", [])


def test_reset_gives_the_same_initial_loss(visit):
    app = press(visit(**LONG), "Step")
    first = points(app)[0]
    press(press(app, "Reset"), "Step")
    assert points(app)[0] == first


def test_new_seed_gives_another_initial_loss(visit):
    app = press(visit(**LONG), "Step")
    first = points(app)[0]
    press(press(app, "New seed"), "Step")
    assert points(app)[0] != first


def test_new_seed_shows_the_seed(visit):
    app = press(visit(**LONG), "New seed")
    seed = number_field(app, "Seed")
    assert str(seed.value) == app.query_params["seed"] != "0"


def test_new_seed_in_mid_race_stops_it(visit):
    app = press(visit(**LONG), "Start")
    job = app.session_state["job:race"]
    press(app, "New seed")
    assert (job.state, progress(app)) == ("stopped", "Ready")


def test_a_race_runs_to_its_end(visit):
    app = press(visit(**FAST, epochs=["1"]), "Start")
    rerun_until(app, lambda app: state(app) == "Finished")
    assert step(app) == 150


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
    transport = app.button[:6]
    assert {each.label for each in transport if not each.disabled} == usable


def test_settings_changed_in_mid_race_leave_it_running(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    job = app.session_state["job:race"]
    number_field(app, "Batch size").set_value(100).run()
    assert app.session_state["job:race"] is job
    assert state(app) == "Running"


def test_settings_changed_in_mid_race_are_said_to_wait(visit):
    app = press(visit(**LONG), "Start")
    number_field(app, "Batch size").set_value(100).run()
    assert any("count from the next start" in each.value for each in app.caption)


def test_leaving_and_coming_back_finds_the_race_running(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    before = step(app)
    app.switch_page(HOME).run()
    app.query_params = {}
    app.switch_page(OPTIMIZERS_PAGE).run()
    assert step(rerun_until(app, lambda app: step(app) > before)) > before


# --- presets --------------------------------------------------------------------------------------

PRESETS = {"All five": AIRFOIL_PRESETS} | {each.label: (each,) for each in AIRFOIL_PRESETS}
ELSEWHERE = {"racer": ["nesterov", "adamw"], "batch_size": ["100"], "seed": ["7"]}


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_sets_the_racers(visit, preset):
    app = press(visit(**ELSEWHERE), preset)
    wanted = [format_racer(Racer(optimizer)) for optimizer in PRESETS[preset]]
    racers = app.query_params["racer"]
    assert ([racers] if isinstance(racers, str) else racers) == wanted


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_sets_what_is_the_same_for_all(visit, preset):
    app = press(visit(**ELSEWHERE), preset)
    wanted = format_fields(RegressionSettings())
    assert {name: app.query_params[name] for name in wanted} == wanted


@pytest.mark.parametrize("preset", PRESETS)
def test_cards_show_the_preset(visit, preset):
    app = press(visit(**ELSEWHERE), preset)
    assert [each.value for each in cards(app)] == [each.name for each in PRESETS[preset]]


def test_preset_in_mid_race_stops_it(visit):
    app = press(visit(**LONG), "Start")
    job = app.session_state["job:race"]
    press(app, "All five")
    assert (job.state, progress(app)) == ("stopped", "Ready")


def test_added_racer_gets_a_card(visit):
    app = press(visit(racer=["sgd"]), "Add a racer")
    assert [each.value for each in cards(app)] == ["sgd", "momentum"]


def test_no_more_racers_than_a_race_takes(visit):
    assert not enabled(visit(racer=["sgd"] * MAX_RACERS), "Add a racer")


def test_removed_racer_is_gone(visit):
    app = press(visit(racer=["sgd", "adam"]), "Remove")
    assert [each.value for each in cards(app)] == ["adam"]


def test_the_last_racer_stays(visit):
    assert not enabled(visit(racer=["sgd"]), "Remove")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_be_chosen(visit, name):
    app = visit(racer=["sgd,lr=0.5"])
    cards(app)[0].set_value(name).run()
    wanted = SGD(lr=0.5) if name == "sgd" else OPTIMIZERS[name]()
    assert app.query_params["racer"] == format_racer(Racer(wanted))


# --- links ----------------------------------------------------------------------------------------

WHOLE = {
    "racer": ["adam,lr=0.02,beta1=0.8,beta2=0.99,eps=1e-06,name=Mine, and yours", "nesterov,lr=1"],
    "engine": "from scratch",
    "objective": "half_mse",
    "model": "hidden",
    "hidden_units": "8",
    "batch_size": "32",
    "epochs": "3",
    "seed": "11",
    "y": "auto",
    "x": "steps",
    "pace": "max",
    "look": "surface",
    "axes": "weights",
    "across": "1",
    "up": "4",
    "others": "current",
    "lowest": "0.001",
    "highest": "0.5",
    "rates": "8",
    "against": "momentum",
    "grid": "2",
    "values": "0.5 0.9",
    "seeds": "3",
}
WHOLE_RACE = RaceConfig(
    racers=(
        Racer(Adam(lr=0.02, beta1=0.8, beta2=0.99, eps=1e-6), "Mine, and yours"),
        Racer(OPTIMIZERS["nesterov"](lr=1.0)),
    ),
    engine="from scratch",
    objective="half_mse",
    model="hidden",
    hidden_units=8,
    batch_size=32,
    epochs=3,
    seed=11,
)


def test_link_decides_the_race(visit):
    app = press(visit(**WHOLE), "Step")
    with app.session_state["job:race"].reading() as history:
        assert history.config == WHOLE_RACE


def test_widgets_show_what_the_link_says(visit):
    app = visit(**WHOLE)
    shown = [each.value for kind in ("number_input", "button_group") for each in app.get(kind)]
    looks = ["surface", "weights", "current", "auto", "steps", "max"]
    assert shown == [32, 3, 11, 8, *looks, "hidden", "half_mse", "from scratch"]


def test_good_link_gives_no_notice(visit):
    app = visit(**WHOLE)
    assert notices(app) + errors(app) == []


def test_url_names_the_whole_configuration(visit):
    written = visit(**WHOLE).query_params
    again = visit(**written).query_params
    assert again == written == {**WHOLE, "racer": [WHOLE["racer"][0], written["racer"][1]]}
    configs = (RegressionSettings, LossView, Pace, Look, SurfaceView, Tuning)
    ruled = {each.name for config in configs for each, _ in ruled_fields(config)}
    assert set(written) == {"racer", "values"} | ruled


def test_change_made_before_the_browser_knows_the_new_url_is_kept(visit):
    """What is done right after a change comes with the URL from before it: no link was followed."""
    app = visit(racer=["sgd"])
    before = app.query_params
    number_field(app, "Batch size").set_value(100).run()
    app.query_params = before
    field(app, "Learning rate").input("0.02").run()
    assert (app.query_params["batch_size"], app.query_params["racer"]) == ("100", "sgd,lr=0.02")


def test_another_link_followed_in_the_same_session_is_opened(visit):
    app = visit(racer=["sgd"])
    app.query_params = {"racer": ["adam"], "batch_size": ["32"]}
    app.run()
    assert [each.value for each in cards(app)] == ["adam"]
    assert number_field(app, "Batch size").value == 32


FIVE = [format_racer(Racer(optimizer)) for optimizer in AIRFOIL_PRESETS]
EIGHT = [f"sgd,lr=0.01,name={number}" for number in range(MAX_RACERS)]
WRONG_LINKS = {
    "lr 0": ({"racer": ["sgd,lr=0"]}, "'0'", {"racer": FIVE}),
    "lr -1": ({"racer": ["sgd,lr=-1"]}, "'-1'", {"racer": FIVE}),
    "lr nan": ({"racer": ["sgd,lr=nan"]}, "'nan'", {"racer": FIVE}),
    "lr 1e9": ({"racer": ["sgd,lr=1e9"]}, "'1e9'", {"racer": FIVE}),
    "momentum 1.5": ({"racer": ["momentum,momentum=1.5"]}, "'1.5'", {"racer": FIVE}),
    "unknown hyperparameter": ({"racer": ["sgd,speed=1"]}, "'speed'", {"racer": FIVE}),
    "unknown optimizer": ({"racer": ["lion"]}, "'lion'", {"racer": FIVE}),
    "one bad racer of two": ({"racer": ["sgd,lr=0", "sgd"]}, "left out", {"racer": "sgd,lr=0.01"}),
    "nine racers": ({"racer": [*EIGHT, "sgd,lr=0.01,name=8"]}, "at most 8", {"racer": EIGHT}),
    "batch size 0": ({"batch_size": ["0"]}, "'0'", {"batch_size": "10"}),
    "batch size 1501": ({"batch_size": ["1501"]}, "'1501'", {"batch_size": "10"}),
    "batch size abc": ({"batch_size": ["abc"]}, "'abc'", {"batch_size": "10"}),
    "epochs 0": ({"epochs": ["0"]}, "'0'", {"epochs": "4"}),
    "epochs 10001": ({"epochs": ["10001"]}, "'10001'", {"epochs": "4"}),
    "seed -1": ({"seed": ["-1"]}, "'-1'", {"seed": "0"}),
    "unknown engine": ({"engine": ["jax"]}, "'jax'", {"engine": "torch"}),
    "unknown view": ({"y": ["log"]}, "'log'", {"y": "gap"}),
    "unknown setting": ({"colour": ["red"]}, "'colour'", {"colour": None}),
}
wrong_links = pytest.mark.parametrize("case", WRONG_LINKS)


@wrong_links
def test_wrong_link_gives_a_notice(visit, case):
    query, cause, _ = WRONG_LINKS[case]
    notice, *_ = notices(visit(**query))
    assert cause in notice


def test_link_without_an_allowed_racer_says_who_races_instead(visit):
    assert any("the five of the notes race instead" in n for n in notices(visit(racer=["x"])))


def test_text_of_a_link_is_no_markdown(visit):
    app = visit(racer=["![i](https://example.org/x.png) $x$ *y*"])
    shown = app.warning[0].value
    assert "](" not in shown
    assert not re.search(r"(?<!\\)[$*!]", shown)


@wrong_links
def test_wrong_link_gives_the_default(visit, case):
    query, _, wanted = WRONG_LINKS[case]
    params = visit(**query).query_params
    assert {name: params.get(name) for name in wanted} == wanted


@wrong_links
def test_race_works_after_a_wrong_link(visit, case):
    app = press(visit(**(FAST | WRONG_LINKS[case][0])), "Step")
    assert (state(app), step(app)) == ("Paused", 1)


TWINS = {"racer": ["sgd,name=Twin", "adam,name=Twin"]}


def test_two_racers_of_one_name_give_a_message(visit):
    (message,) = errors(visit(**TWINS))
    assert "called 'Twin'" in message


def test_two_racers_of_one_name_cannot_start(visit):
    app = visit(**TWINS)
    assert not enabled(app, "Start")
    assert not enabled(app, "Step")


def test_a_new_name_parts_two_racers(visit):
    app = visit(**TWINS)
    field(app, "Name").input("Other").run()
    assert (errors(app), enabled(app, "Start")) == ([], True)


# --- typing ---------------------------------------------------------------------------------------

bad_rates = pytest.mark.parametrize("text", ["abc", "0", "1e9", "nan", "-1", "", "1e-9"])


@bad_rates
def test_bad_learning_rate_gives_a_message(visit, text):
    app = visit()
    field(app, "Learning rate").input(text).run()
    assert any("lr must be" in message and repr(text) in message for message in errors(app))


@bad_rates
def test_race_cannot_start_with_a_bad_learning_rate(visit, text):
    app = visit()
    field(app, "Learning rate").input(text).run()
    assert not enabled(app, "Start")


@bad_rates
def test_page_stays_whole_after_a_bad_learning_rate(visit, text):
    app = visit()
    guess = {"Commit", "Its loss"}  # there is no race to predict

    def widgets():
        kinds = (app.button, app.text_input, app.number_input)
        return [each.label for kind in kinds for each in kind if each.label not in guess]

    before = widgets()
    field(app, "Learning rate").input(text).run()
    assert widgets() == before
    assert not app.exception


def test_bad_learning_rate_leaves_a_running_race_alone(visit):
    app = rerun_until(press(visit(**LONG), "Start"), has_moved)
    field(app, "Learning rate").input("abc").run()
    assert state(app) == "Running"
    assert spec(app)


def test_good_learning_rate_after_a_bad_one_starts(visit):
    app = visit(**FAST)
    field(app, "Learning rate").input("abc").run()
    field(app, "Learning rate").input("0.02").run()
    assert (errors(app), enabled(app, "Start")) == ([], True)


@pytest.mark.parametrize("text", ["0,02", "0.02", "2e-2", " .02 "])
def test_learning_rate_as_people_write_it(visit, text):
    app = visit(racer=["sgd"])
    field(app, "Learning rate").input(text).run()
    assert app.query_params["racer"] == "sgd,lr=0.02"


def test_typed_names_that_are_equal_give_a_message(visit):
    app = visit()
    field(app, "Name", 0).input("Twin").run()
    field(app, "Name", 1).input("Twin").run()
    assert any("called 'Twin'" in message for message in errors(app))
    assert not enabled(app, "Start")


# --- the picture ----------------------------------------------------------------------------------


def test_points_are_those_of_a_headless_race(visit):
    config = RaceConfig(
        racers=tuple(Racer(each) for each in AIRFOIL_PRESETS), engine="from scratch", epochs=2
    )
    app = press(visit(**FAST, epochs=["2"]), "Start")
    rerun_until(app, lambda app: state(app) == "Finished")
    headless = [
        (event.racer, event.event.step, event.event.epochs, event.event.loss)
        for event in race(config)
        if isinstance(event, RacerEvent) and isinstance(event.event, LossRecorded)
    ]
    shown = points(app)
    assert sorted(each[:2] for each in shown) == sorted(each[:2] for each in headless)
    for (*_, epochs, loss), (*_, exact_epochs, exact_loss) in zip(
        sorted(shown), sorted(headless), strict=True
    ):
        assert epochs == pytest.approx(exact_epochs, rel=0, abs=1e-12)
        assert loss == pytest.approx(exact_loss, rel=0, abs=1e-12)


def test_chart_describes_itself(visit):
    description = spec(visit())["description"]
    assert all(optimizer.label in description for optimizer in AIRFOIL_PRESETS)


def test_description_does_not_change_while_the_race_runs(visit):
    app = visit(**LONG)
    before = spec(app)["description"]
    rerun_until(press(app, "Start"), has_moved)
    assert spec(app)["description"] == before


def test_network_races(visit):
    app = press(visit(**FAST, racer=["adam"], model=["hidden"], epochs=["1"]), "Start")
    rerun_until(app, lambda app: state(app) == "Finished")
    losses = [loss for *_, loss in points(app)]
    assert losses[-1] < losses[0]


def test_minimum_of_a_network_is_said_to_be_unknown(visit):
    app = press(visit(**FAST, racer=["adam"], model=["hidden"]), "Step")
    assert "above minimum (unknown)" in standings(app)
    assert "its minimum is unknown" in spec(app)["description"]


def test_diverged_racer_is_explained(visit):
    app = press(visit(**FAST, racer=["sgd,lr=10", "adam"], epochs=["1"]), "Start")
    rerun_until(app, lambda app: state(app) == "Finished")
    assert "The loss stopped being finite at step" in standings(app)


def test_a_name_cannot_smuggle_html_into_the_table(visit):
    assert "<b>bold</b>" not in standings(visit(racer=["sgd,name=<b>bold</b>"]))


# --- what goes wrong inside -----------------------------------------------------------------------


@pytest.fixture
def broken_sgd(monkeypatch):
    def update(self, parameter, gradient, state, step):
        raise RuntimeError("boom")

    monkeypatch.setattr(OPTIMIZERS["sgd"], "update", update)


def fail(visit):
    app = press(visit(**FAST, racer=["sgd"]), "Start")
    return rerun_until(app, lambda app: state(app) == "Failed" or app.error)


def test_exception_in_a_run_is_one_sentence_on_the_page(visit, broken_sgd):
    (sentence,) = errors(fail(visit))
    assert "internal error (RuntimeError: boom)" in sentence
    assert "Traceback" not in sentence


def test_exception_in_a_run_leaves_its_traceback_in_the_log(visit, broken_sgd, caplog):
    fail(visit)
    (record,) = (each for each in caplog.records if each.name == "labcore.jobs")
    assert record.exc_info[0] is RuntimeError


def test_other_races_go_on_after_an_exception_in_one(visit, broken_sgd):
    other = press(visit(**{**LONG, "racer": ["adam"]}), "Start")
    fail(visit)
    before = step(other.run())
    assert step(rerun_until(other, lambda app: step(app) > before)) > before


def test_damaged_data_are_explained_on_the_home_page(visit, damaged_data):
    assert "is damaged: expected SHA-1" in visit(HOME).table[0].value.to_string()


def test_damaged_data_are_explained_on_the_optimizers_page(visit, damaged_data):
    app = visit()
    assert any("is damaged: expected SHA-1" in message for message in errors(app))
    assert not app.exception


def test_bad_name_in_a_card_is_explained_and_nothing_is_lost(visit):
    app = visit(racer=["sgd,lr=0.02"])
    name = next(each for each in app.text_input if each.label == "Name")
    name.set_value("bell\a").run()
    assert any("printable characters" in each for each in errors(app))
    assert not app.exception
