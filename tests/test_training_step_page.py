"""The Training step page as a script, without a browser: what it shows, and what it survives."""

import json

import pytest

from labcore.bugs import BUGS
from labcore.step_curves import loss_curves
from labcore.step_record import MOVES
from labcore.training_step import Trainer, TrainingStepConfig
from labui.step_form import GUESSES, NONE, SURPRISE, StepSettings
from tests.test_pages import button, elements, errors, notices, press

PAGE = "pages/training_step.py"
SMALL = {"replicas": "3", "batch_size": "7"}
"""Uneven shards, and quick."""


def film(app):
    """What the page has sent to the player."""
    [mounted] = app.get("bidi_component")
    return json.loads(mounted.proto.json)


def config(**values):
    return TrainingStepConfig(**{"replicas": 3, "batch_size": 7} | values)


def held(sent, frame, name):
    """Per replica the values of a tensor in a frame, as the browser finds them."""
    views = sent["scene"]["views"]
    places = sent["frames"][frame][name]
    return [None if place is None else views[place]["values"] for place in places]


def values_of(views):
    return [None if view is None else list(map(list, view.values)) for view in views]


def words(app):
    kinds = (app.markdown, app.caption, app.code, app.success, app.error, app.info, app.warning)
    return "\n".join(each.value for kind in kinds for each in kind)


@pytest.mark.parametrize("parameter", ["b1", "w2"])
def test_the_film_is_the_step(visit, parameter):
    sent = film(visit(PAGE, **SMALL, parameter=parameter))
    record = Trainer(config(parameter=parameter)).step()
    assert len(sent["frames"]) == len(MOVES) + 1
    for frame, state in enumerate(record.states):
        assert held(sent, frame, "parameters") == values_of(state.parameters)
        assert held(sent, frame, "gradients") == values_of(state.gradients)
    for frame, move in zip(sent["frames"][1:], record.moves, strict=True):
        assert frame["sentence"] == move.sentence


def test_the_notes_b1_is_zeros_and_has_no_gradient_before_the_backward_pass(visit):
    sent = film(visit(PAGE, **SMALL))
    assert held(sent, 3, "gradients") == [None] * 3
    assert held(sent, 3, "parameters") == [[[0.0] * 20]] * 3
    assert all(any(values[0]) for values in held(sent, 4, "gradients"))


def test_in_the_end_all_replicas_are_equal_and_as_one_device(visit):
    sent = film(visit(PAGE, **SMALL))
    one, *others = held(sent, 6, "parameters")
    assert others == [one, one]
    drift, difference, ratio, _ = sent["frames"][-1]["totals"]
    assert drift == "0"
    assert float(difference) < 1e-6
    assert ratio == "1"


def test_next_step_goes_on_with_the_same_replicas(visit):
    app = press(press(visit(PAGE, **SMALL), "Next step"), "Next step")
    trainer = Trainer(config())
    record = [trainer.step() for _ in range(3)][-1]
    assert held(film(app), 6, "parameters") == values_of(record.states[-1].parameters)
    assert app.query_params["step"] in ("3", ["3"])


def test_a_link_with_a_step_takes_the_steps_before_it(visit):
    trainer = Trainer(config())
    for _ in range(6):
        trainer.advance()
    sent = film(visit(PAGE, **SMALL, step="7"))
    assert sent["frames"][-1]["sentence"] == trainer.step().moves[-1].sentence


def test_another_parameter_stays_at_its_step(visit):
    app = visit(PAGE, **SMALL, step="3")
    next(each for each in app.selectbox if each.label == "Parameter").set_value("b4").run()
    trainer = Trainer(config(parameter="b4"))
    record = [trainer.step() for _ in range(3)][-1]
    assert held(film(app), 6, "parameters") == values_of(record.states[-1].parameters)


def test_one_replica_has_nothing_to_send(visit):
    app = visit(PAGE, replicas="1", batch_size="7")
    assert not errors(app)
    assert "nothing needs to be sent" in film(app)["frames"][5]["sentence"]


def test_sixteen_replicas_of_the_largest_parameter_fit_into_a_megabyte(visit):
    app = visit(PAGE, replicas="16", parameter="w3", step="2")
    [mounted] = app.get("bidi_component")
    assert len(mounted.proto.json) < 1_000_000


def test_the_url_says_everything(visit):
    query = {"step": "2", "at": "5", "bug": "surprise", "guess": "aliased", "allreduce": "ring"}
    app = visit(PAGE, **SMALL, **query)
    assert film(app)["start"] == 5
    assert {name: str(app.query_params[name]).strip("[']") for name in query} == query


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"replicas": "17"}, "replicas must be a whole number from 1 to 16; received '17'"),
        ({"batch_size": "0"}, "batch_size must be a whole number from 1 to 512"),
        ({"lr": "nan"}, "lr must be a number from"),
        ({"step": "51"}, "step must be a whole number from 1 to 50; received '51'"),
        ({"bug": "typo"}, "bug must be one of none,"),
        ({"parameter": "w9"}, "parameter must be one of w1,"),
    ],
)
def test_a_link_with_a_bad_setting_says_so_and_shows_the_default(visit, query, message):
    app = visit(PAGE, **query)
    assert any(message in notice for notice in notices(app))
    assert len(film(app)["frames"]) == 7


def test_what_was_shown_stays_when_devices_and_rows_do_not_go_together(visit):
    app = visit(PAGE, **SMALL)
    shown = film(app)
    next(each for each in app.number_input if each.label == "Devices").set_value(8).run()
    assert any("at least one row per device" in message for message in errors(app))
    assert film(app)["frames"] == shown["frames"]
    next(each for each in app.selectbox if each.label == "Parameter").set_value("b4").run()
    assert film(app)["frames"] == shown["frames"]


@pytest.mark.parametrize("bug", BUGS)
def test_a_named_mistake_is_made_and_explained(visit, bug):
    app = visit(PAGE, **SMALL, bug=bug, at="6")
    trainer = Trainer(config(bug=bug))
    assert film(app)["frames"][-1]["sentence"] == trainer.step().moves[-1].sentence
    assert all(text in words(app) for text in (BUGS[bug].what, BUGS[bug].giveaway, BUGS[bug].fix))


def test_a_mistake_that_changes_nothing_says_so(visit):
    app = visit(PAGE, bug="mean_of_means")
    assert any("changes nothing" in each.value for each in app.info)


@pytest.mark.parametrize("seed", range(6))
def test_a_surprise_is_told_by_nothing_but_its_numbers(visit, seed):
    app = visit(PAGE, **SMALL, bug=SURPRISE, seed=str(seed), at="3")
    truth = StepSettings(replicas=3, batch_size=7, bug=SURPRISE, seed=seed).config().bug
    said = words(app) + json.dumps(film(app))
    assert "hidden until you have named the bug" in said
    assert not app.code
    assert "; its loss, the" not in said
    for name, bug in BUGS.items():
        assert not any(text in said for text in (name, bug.label, bug.what, bug.giveaway))
    app = press(app, "Reveal")
    assert film(app)["start"] == 3
    assert f"It is: {GUESSES[truth]}." in words(app)
    assert ("Right." in words(app)) == (truth == NONE)
    assert app.code


def test_another_surprise_is_hidden_again(visit):
    app = visit(PAGE, **SMALL, bug=SURPRISE, revealed="1")
    app = press(app, "Another surprise")
    assert not app.code
    assert not button(app, "Reveal").disabled


def test_another_seed_hides_the_surprise_again(visit):
    app = visit(PAGE, **SMALL, bug=SURPRISE, revealed="1")
    assert button(app, "Reveal").disabled
    next(each for each in app.number_input if each.label == "Seed").set_value(5).run()
    assert not app.code


def test_every_mistake_can_be_a_surprise_and_none_that_changes_nothing():
    found = {StepSettings(batch_size=62, bug=SURPRISE, seed=seed).config() for seed in range(60)}
    assert {each.bug for each in found} == {NONE, *BUGS}
    even = [StepSettings(bug=SURPRISE, seed=seed).config() for seed in range(60)]
    assert all(each.bug == NONE or not each.harmless for each in even)


def test_replicas_that_diverge_stay_at_their_last_step(visit):
    app = visit(PAGE, **SMALL, bug="not_divided", lr="5", step="50")
    trainer = Trainer(config(bug="not_divided", lr=5.0))
    while not trainer.diverged:
        last = trainer.advance()
    assert str(last.diverged) in notices(app)[0]
    assert button(app, "Next step").disabled
    step = next(each for each in app.run().number_input if each.label == "Step")
    assert step.value == trainer.steps < 50


def test_fifty_steps_are_those_of_the_core(visit):
    app = visit(PAGE, **SMALL, bug="not_copied_back")
    button(app, "Train 50 steps").click().run(timeout=60)
    assert not errors(app)
    assert len(app.get("vega_lite_chart")) == 3
    table = app.dataframe[0].value
    points = list(loss_curves(config(bug="not_copied_back")))
    assert table["loss"].tolist() == [point.loss for point in points]
    assert table["drift"].tolist() == [point.drift for point in points]


def test_curves_of_other_settings_are_not_shown(visit):
    app = visit(PAGE, **SMALL, bug="divided_twice")
    button(app, "Train 50 steps").click().run(timeout=60)
    next(each for each in app.selectbox if each.label == "Mistake").set_value(NONE).run()
    assert not app.get("vega_lite_chart")


def test_every_widget_explains_itself(visit):
    widgets = elements(visit(PAGE, **SMALL, bug=SURPRISE), "id", "help")
    assert {"Reveal", "Your guess"} <= {each.label for each in widgets}
    assert [each.label for each in widgets if not each.help] == []
