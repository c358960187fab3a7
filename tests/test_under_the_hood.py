"""Under the hood, on the page: the numbers are those of the run, and follow the step button."""

import re
import time

import pytest

from labcore.events import WeightsRecorded
from labcore.optimizers import OPTIMIZERS
from labcore.race import RaceConfig, Racer
from labcore.regression import train_regression
from labcore.retrace import Retrace
from tests.test_pages import ended, press

SCRATCH = {"engine": ["from scratch"], "pace": ["max"], "look": ["hood"], "epochs": ["1"]}


def table(app):
    """The shown table: weight to the texts of its cells."""
    text = next(each.value for each in app.html if "class='hood'" in each.value)
    rows = re.findall(r"<tr><th scope='row'>(.*?)</th>(.*?)</tr>", text)
    return {name: re.findall(r"<td>(.*?)</td>", cells) for name, cells in rows}


def words(app):
    [text] = [each.value for each in app.html if each.value.startswith("<p>")]
    return re.sub(r"<[^>]*>", "", text)


def run_of(name):
    racer = Racer(OPTIMIZERS[name]())
    config = RaceConfig(racers=(racer,), engine="from scratch", epochs=1)
    return config.run_of(config.racers[0])


def test_before_the_first_step_the_table_waits(visit):
    cells = table(visit(**SCRATCH, racer=["adam"]))
    assert list(cells) == [
        "frequency", "angle of attack", "chord length", "velocity", "displacement thickness", "bias"
    ]  # fmt: skip
    assert {cell for row in cells.values() for cell in row} == {"–"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_table_has_the_numbers_of_the_step(visit, name):
    app = visit(**SCRATCH, racer=[name])
    for _ in range(3):
        press(app, "Step")
    retrace = Retrace(run_of(name))
    retrace.go_to(3)
    updated = retrace.latest
    for place, cells in enumerate(table(app).values()):
        value, gradient, *states, update, new_value = map(float, cells)
        expected = [
            float(each[place])
            for pair in zip(updated.state_before, updated.state, strict=True)
            for each in pair
        ]
        assert states == pytest.approx(expected, rel=1e-5)
        assert gradient == pytest.approx(float(updated.gradient[place]), rel=1e-5)
        assert value == pytest.approx(float(updated.before[place]), abs=6e-9)
        assert new_value == pytest.approx(float(updated.after[place]), abs=6e-9)
        assert round(value + update, 8) == new_value, "the sum on screen must be right"


def test_new_values_are_the_weights_of_the_race(visit):
    app = ended(press(visit(**SCRATCH, racer=["momentum"]), "Start"))
    *_, last = [
        event for event in train_regression(run_of("momentum"), weights=True)
        if isinstance(event, WeightsRecorded)
    ]  # fmt: skip
    shown = [float(cells[-1]) for cells in table(app).values()]
    assert shown == pytest.approx(last.weights.tolist(), abs=6e-9)


def test_it_follows_the_step_button(visit):
    app = visit(**SCRATCH, racer=["sgd"])
    seen = []
    for _ in range(3):
        press(app, "Step")
        seen.append(words(app).split(" moved")[0])
    assert seen == ["Step 1", "Step 2", "Step 3"]


def test_another_racer_can_be_looked_at(visit):
    app = press(visit(**SCRATCH, racer=["sgd", "adam"]), "Step")
    assert "keeps no state" in words(app)
    select = next(each for each in app.selectbox if each.label == "Racer")
    select.set_value("Adam").run()
    assert "Mean gradient" in words(app)
    rule = "scale = (square / (1 - self.beta2**step)).sqrt() + self.eps"
    assert any(rule in each.value for each in app.code)


def test_words_are_about_the_chosen_weight(visit):
    app = press(visit(**SCRATCH, racer=["momentum"]), "Step")
    next(each for each in app.selectbox if each.label == "In words for").set_value("bias").run()
    assert words(app).startswith("Step 1 moved bias by")


def test_choices_survive_a_visit_elsewhere(visit):
    app = press(visit(**SCRATCH, racer=["sgd", "momentum"]), "Step")
    next(each for each in app.selectbox if each.label == "Racer").set_value("Momentum").run()
    next(each for each in app.selectbox if each.label == "In words for").set_value("bias").run()
    app.switch_page("app.py").run()
    app.query_params = {}
    app.switch_page("pages/optimizers.py").run()
    assert words(app).startswith("Step 1 moved bias by")
    assert "Velocity" in words(app)


def test_formula_is_shown(visit):
    app = visit(**SCRATCH, racer=["momentum"])
    assert r"v \leftarrow \beta v + g" in app.latex[0].value


@pytest.mark.parametrize(("engine", "said"), [("torch", True), ("from scratch", False)])
def test_twin_of_torchs_optimizer_is_called_so(visit, engine, said):
    app = visit(**SCRATCH | {"engine": [engine]}, racer=["sgd"])
    assert any("they differ by rounding only" in each.value for each in app.caption) is said


def test_network_shows_all_its_weights(visit):
    app = press(visit(**SCRATCH, racer=["adam"], model=["hidden"], hidden_units=["2"]), "Step")
    assert len(table(app)) == (5 + 1) * 2 + 2 + 1


def test_diverged_racer_is_shown_at_its_last_step(visit):
    app = ended(press(visit(**SCRATCH, racer=["sgd,lr=5", "adam"]), "Start"))
    with app.session_state["job:race"].reading() as history:
        step = history.lanes["SGD"].outcome.step
    assert words(app).startswith(f"Step {step} moved")
    assert not app.exception


def test_failed_race_shows_its_error_and_no_traceback(visit, monkeypatch):
    def update(self, parameter, gradient, state, step):
        raise RuntimeError("boom")

    monkeypatch.setattr(OPTIMIZERS["sgd"], "update", update)
    app = press(visit(**SCRATCH, racer=["sgd"]), "Start")
    until = time.monotonic() + 20
    while not app.error:
        assert time.monotonic() < until
        time.sleep(0.05)
        app.run()
    assert not app.exception
