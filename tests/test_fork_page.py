"""Forks on the Optimizers page, without a browser."""

import re
import time

import pytest

from labcore.events import Finished
from labcore.optimizers import SGD, Adam
from labcore.regression import Stage
from tests.test_pages import press, progress

QUICK = {"engine": ["from scratch"], "pace": ["max"], "epochs": ["1"], "racer": ["sgd", "adam"]}
LONG = QUICK | {"epochs": ["10000"], "pace": ["500"]}


def until(app, wanted):
    end = time.monotonic() + 20
    while not wanted(app):
        assert time.monotonic() < end, progress(app)
        time.sleep(0.05)
        app.run()
    return app


def ended(app):
    # Once more, as the browser does at the end.
    return until(app, lambda app: progress(app).startswith("Finished")).run()


def widget(app, kind, label):
    """The fork's own: those of the racers come before it."""
    return [each for each in app.get(kind) if each.label == label][-1]


def history(app):
    with app.session_state["job:race"].reading() as history:
        return history


def curve(app, name):
    return [(point.step, point.loss) for point in history(app).lanes[name].points]


def set_fork(app, step=None, kind=None, lr=None, parent=None):
    if parent is not None:
        widget(app, "selectbox", "Racer to fork").set_value(parent).run()
    if step is not None:
        widget(app, "number_input", "From step").set_value(step).run()
    if kind is not None:
        widget(app, "selectbox", "Goes on with").set_value(kind).run()
    if lr is not None:
        widget(app, "text_input", "Learning rate").set_value(lr).run()
    return app


def test_without_a_race_there_is_nothing_to_fork(visit):
    app = visit(**QUICK)
    assert any("nothing to fork yet" in each.value for each in app.caption)
    assert "Fork" not in [each.label for each in app.button]


def test_fork_of_an_ended_race_runs_and_the_parents_curve_stays(visit):
    app = ended(press(visit(**QUICK), "Start"))
    before = curve(app, "SGD")
    ended(press(set_fork(app, step=40, lr="0.05"), "Fork"))
    assert list(history(app).lanes) == ["SGD", "Adam", "SGD from 40"]
    assert curve(app, "SGD") == before
    fork = history(app).lanes["SGD from 40"]
    assert fork.racer.optimizer == SGD(lr=0.05)
    assert fork.racer.before == (Stage(SGD(), 40),)
    assert isinstance(fork.outcome, Finished)
    assert [point for point in curve(app, "SGD from 40") if point[0] <= 40] == [
        point for point in before if point[0] <= 40
    ]


def test_fork_begins_half_way_until_another_step_is_typed(visit):
    app = ended(press(visit(**QUICK), "Start"))
    assert widget(app, "number_input", "From step").value == 75


def test_fork_goes_on_with_another_optimizer(visit):
    app = ended(press(visit(**QUICK), "Start"))
    ended(press(set_fork(app, parent="Adam", step=10, kind="sgd"), "Fork"))
    [*_, racer] = history(app).config.racers
    assert (racer.optimizer, racer.before) == (SGD(), (Stage(Adam(), 10),))


def test_fork_of_a_paused_race_leaves_it_paused_where_it_was(visit):
    app = until(press(visit(**LONG), "Start"), lambda app: "step" in progress(app))
    press(app, "Pause")
    app.session_state["job:race"].wait(5)
    held = int(re.search(r"step ([\d,]+)", progress(app.run()))[1].replace(",", ""))
    press(set_fork(app, step=0, lr="0.05"), "Fork")
    until(app, lambda app: f"step {held:,} of" in progress(app))
    assert progress(app).startswith("Paused")
    assert "SGD from 0" in history(app).lanes


def test_fork_of_a_running_race_goes_on_with_it(visit):
    app = until(press(visit(**LONG), "Start"), lambda app: "step" in progress(app))
    press(set_fork(app, step=0, lr="0.05"), "Fork")
    until(app, lambda app: progress(app).startswith("Running") and history(app).taken)
    lanes = history(app).lanes
    until(app, lambda app: all(lane.latest for lane in lanes.values()))
    assert set(lanes) == {"SGD", "Adam", "SGD from 0"}


def test_diverged_run_cannot_be_continued_and_nothing_is_lost(visit):
    app = ended(press(visit(**QUICK | {"racer": ["sgd,lr=5"]}), "Start"))
    job = app.session_state["job:race"]
    step = history(app).lanes["SGD"].outcome.step
    press(set_fork(app, step=step, lr="0.01"), "Fork")
    [message] = [re.sub(r"\\(.)", r"\1", each.value) for each in app.error]
    assert f"diverged at step {step}: there is nothing to continue from" in message
    assert app.session_state["job:race"] is job
    assert widget(app, "number_input", "From step").value == step


def test_diverged_run_can_be_rewound(visit):
    app = ended(press(visit(**QUICK | {"racer": ["sgd,lr=5"]}), "Start"))
    ended(press(set_fork(app, step=0, lr="0.01"), "Fork"))
    assert isinstance(history(app).lanes["SGD from 0"].outcome, Finished)


def test_step_beyond_what_is_recorded_is_refused(visit):
    app = ended(press(visit(**QUICK), "Start"))
    press(set_fork(app, step=5000), "Fork")
    assert len(app.error) == 1
    assert len(history(app).lanes) == 2


@pytest.mark.parametrize("text", ["abc", "0", "-1", ""])
def test_bad_learning_rate_of_a_fork_is_said_and_start_stays_possible(visit, text):
    app = ended(press(visit(**QUICK), "Start"))
    set_fork(app, lr=text)
    assert "lr must be" in re.sub(r"\\(.)", r"\1", app.error[0].value)
    buttons = {each.label: each.disabled for each in app.button}
    assert (buttons["Fork"], buttons["Start"]) == (True, False)


def test_forks_do_not_make_the_settings_look_changed(visit):
    app = ended(press(visit(**QUICK), "Start"))
    ended(press(set_fork(app, step=40, lr="0.05"), "Fork"))
    assert not any("count from the next start" in each.value for each in app.caption)


def test_next_start_goes_without_the_fork(visit):
    app = ended(press(visit(**QUICK), "Start"))
    ended(press(set_fork(app, step=40), "Fork"))
    ended(press(app, "Start"))
    assert list(history(app).lanes) == ["SGD", "Adam"]


def test_fork_can_be_forked(visit):
    app = ended(press(visit(**QUICK), "Start"))
    ended(press(set_fork(app, step=40, lr="0.05"), "Fork"))
    ended(press(set_fork(app, parent="SGD from 40", step=80, lr="0.001"), "Fork"))
    [*_, racer] = history(app).config.racers
    assert [stage.until for stage in racer.before] == [40, 80]


def test_what_is_set_survives_a_visit_elsewhere(visit):
    app = set_fork(ended(press(visit(**QUICK), "Start")), parent="Adam", step=33, kind="momentum")
    app.switch_page("app.py").run()
    app.query_params = {}
    app.switch_page("pages/optimizers.py").run()
    assert widget(app, "selectbox", "Racer to fork").value == "Adam"
    assert widget(app, "number_input", "From step").value == 33
    assert widget(app, "selectbox", "Goes on with").value == "momentum"
