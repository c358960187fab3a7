"""The Optimizers page's sweep and fair race, without a browser."""

import re
import time

import pytest

from labcore.fair_race import FairRaceConfig, FairRaceHistory, fair_race
from labcore.links import format_racer
from labcore.optimizers import SGD, Adam
from labcore.race import MAX_RACERS, Racer
from labcore.regression import RegressionConfig, train_regression
from labui.tuning_form import parse_values
from tests.test_pages import button, press

SHORT = {"batch_size": ["100"], "epochs": ["1"], "rates": ["3"], "lowest": ["0.001"]}
TWO = ["sgd,lr=0.02", "adam,lr=0.02,name=Mine"]
SWEEP = {**SHORT, "look": ["sweep"], "racer": TWO}
FAIR = {**SHORT, "look": ["fair"], "racer": TWO, "seeds": ["2"]}
LONG = {**SWEEP, "epochs": ["10000"]}
WILD = {"lowest": ["5"], "highest": ["10"], "epochs": ["40"]}


def choice(app, label):
    return next(each for each in app.selectbox if each.label == label)


def errors(app):
    return [re.sub(r"\\(.)", r"\1", each.value) for each in app.error]


def captions(app):
    return " ".join(each.value for each in app.caption)


def ended(app, label="Sweep", job="job:sweep"):
    """Press and follow it to its end."""
    press(app, label)
    assert app.session_state[job].wait(30)
    time.sleep(0.05)
    return app.run()


def table(app, toggle):
    [found] = [each for each in app.toggle if each.label == toggle]
    if not found.value:
        found.set_value(True).run()
    return app.dataframe[-1].value.to_dict("records")


def racers(app):
    draft = app.session_state["draft:race"]
    return [racer.optimizer for racer in draft.racers.values()]


# --- sweep ----------------------------------------------------------------------------------------


def test_sweep_shows_every_run_with_the_loss_that_it_has_alone(visit):
    shown = table(ended(visit(**SWEEP)), "Sweep as a table")
    assert [(row["run"], row["learning rate"]) for row in shown] == [
        (name, lr) for name in ("SGD", "Mine") for lr in ("0.001", "0.03162", "1")
    ]
    config = RegressionConfig(
        optimizer=Adam(lr=0.03162), batch_size=100, epochs=1, engine="from scratch"
    )
    *_, finished = train_regression(config)
    assert shown[4]["loss (½ MSE)"] == pytest.approx(finished.loss, abs=1e-5)


def test_sweep_says_where_a_run_diverged(visit):
    app = ended(visit(**{**SWEEP, "highest": ["10"], "epochs": ["40"]}))
    diverged = [row["end"] for row in table(app, "Sweep as a table") if row["run"] == "SGD"]
    assert re.fullmatch(r"diverged at step \d+", diverged[-1])


def test_best_run_is_the_first_to_be_added(visit):
    app = ended(visit(**SWEEP))
    losses = {
        (row["run"], row["learning rate"]): row["loss (½ MSE)"]
        for row in table(app, "Sweep as a table")
    }
    run, lr = min(losses, key=losses.get)
    assert choice(app, "Run").options[0].startswith(f"{run}, lr {lr}: loss ")
    press(app, "Add as a racer")
    assert racers(app)[-1].lr == float(lr)


def test_any_run_can_be_added_as_a_racer(visit):
    app = ended(visit(**SWEEP))
    wanted = next(each for each in choice(app, "Run").options if each.startswith("SGD, lr 0.03162"))
    choice(app, "Run").select_index(choice(app, "Run").options.index(wanted)).run()
    press(app, "Add as a racer")
    assert racers(app) == [SGD(lr=0.02), Adam(lr=0.02), SGD(lr=0.03162)]


def test_full_race_takes_no_racer_from_a_sweep(visit):
    app = ended(visit(**{**SWEEP, "racer": TWO + ["sgd"] * (MAX_RACERS - 2)}))
    assert button(app, "Add as a racer").disabled


def test_racers_that_differ_only_in_their_rates_are_swept_once(visit):
    app = ended(visit(**{**SWEEP, "racer": ["sgd,lr=0.01", "sgd,lr=0.1", "adam,beta1=0.5"]}))
    assert {row["run"] for row in table(app, "Sweep as a table")} == {"SGD", "Adam"}


def test_sweep_with_every_run_diverged_is_a_sentence(visit):
    app = ended(visit(**{**SWEEP, "racer": ["sgd"], **WILD}))
    [error] = errors(app)
    assert error.startswith("Every run diverged, the one at the lowest learning rate, 5, at step")
    assert "stable only below 0.4765" in error


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lowest": ["1"], "highest": ["0.1"]}, "sweep: highest must be far enough above"),
        ({"against": ["batch_size"], "values": ["10 x"]}, "sweep: values must be numbers"),
        ({"against": ["batch_size"], "values": ["30 10"]}, "at most 12 ascending numbers"),
        ({"against": ["momentum"]}, "sweep: racers must be one of momentum, nesterov"),
    ],
)
def test_settings_that_do_not_go_together_are_a_sentence_and_no_sweep(visit, settings, words):
    app = visit(**{**SWEEP, **settings})
    assert any(words in each for each in errors(app))
    assert button(app, "Sweep").disabled


def test_grid_over_batch_sizes_brings_its_batch_size(visit):
    app = ended(visit(**{**SWEEP, "against": ["batch_size"], "values": ["50 500"], "grid": ["2"]}))
    shown = table(app, "Sweep as a table")
    assert [row["batch size"] for row in shown] == [50] * 3 + [500] * 3
    options = choice(app, "Run").options
    wanted = next(each for each in options if "Mine, lr 0.03162, batch size 500" in each)
    choice(app, "Run").select_index(options.index(wanted)).run()
    press(app, "Add as a racer")
    assert racers(app)[-1] == Adam(lr=0.03162)
    assert app.session_state["draft:race"].values["batch_size"] == 500


def test_grid_over_momentum_takes_a_racer_that_has_one(visit):
    app = visit(**{**SWEEP, "racer": ["sgd", "momentum"], "against": ["momentum"]})
    assert choice(app, "Grid of").options == ["2: Momentum"]
    ended(app)
    assert {row["run"] for row in table(app, "Sweep as a table")} == {"Momentum"}


def test_sweeps_settings_are_in_the_link(visit):
    app = visit(**{**SWEEP, "against": ["batch_size"], "values": ["50 500"]})
    query = app.query_params
    names = ("look", "lowest", "rates", "against", "values")
    assert [query[name] for name in names] == ["sweep", "0.001", "3", "batch_size", "50 500"]


def test_changed_settings_are_said_to_count_later(visit):
    app = ended(visit(**SWEEP))
    assert "count from the next sweep" not in captions(app)
    next(each for each in app.number_input if each.label == "Learning rates").set_value(5).run()
    assert "count from the next sweep" in captions(app)


def test_sweep_can_be_stopped(visit):
    app = press(visit(**LONG), "Sweep")
    press(app, "Stop")
    assert app.session_state["job:sweep"].wait(20)
    assert app.run().get("progress")[0].proto.text.startswith("Stopped")
    assert not button(app, "Sweep").disabled


def test_sweep_goes_on_while_the_race_is_looked_at(visit):
    app = press(visit(**LONG), "Sweep")
    next(each for each in app.button_group if each.label == "Look at").set_value("curves").run()
    assert app.session_state["job:sweep"].live
    assert not app.exception


# --- fair race ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fair():
    config = FairRaceConfig(
        racers=(Racer(SGD()), Racer(Adam(), "Mine")),
        batch_size=100,
        epochs=1,
        rates=3,
        lowest=0.001,
        seeds=2,
    )
    history = FairRaceHistory(config)
    for event in fair_race(config):
        history.add(event)
    return history


def test_budget_is_said_before_the_start(visit, fair):
    assert fair.budget[1:] in captions(visit(**FAIR))


def test_chosen_rates_and_losses_are_those_of_labcore(visit, fair):
    app = ended(visit(**FAIR), "Tune and race", "job:fair race")
    shown = {row["run"]: row for row in app.dataframe[0].value.to_dict("records")}
    assert {name: row["best lr"] for name, row in shown.items()} == {
        name: f"{choice.lr:g}" for name, choice in fair.chosen.items()
    }
    assert {name: row["median"] for name, row in shown.items()} == pytest.approx(
        {name: last.loss for name, last in fair.latest.items()}
    )


def test_what_was_tried_is_a_table(visit, fair):
    shown = table(ended(visit(**FAIR), "Tune and race", "job:fair race"), "What was tried")
    assert len(shown) == 2 * 3
    chosen = {row["run"]: row["learning rate"] for row in shown if row["chosen"]}
    assert chosen == {name: f"{choice.lr:g}" for name, choice in fair.chosen.items()}


def test_race_with_these_takes_the_rates_and_an_unused_seed(visit, fair):
    app = press(ended(visit(**FAIR), "Tune and race", "job:fair race"), "Race with these")
    assert [each.lr for each in racers(app)] == [choice.lr for choice in fair.chosen.values()]
    values = app.session_state["draft:race"].values
    assert (values["seed"], values["look"]) == (2, "curves")


def test_racer_without_a_rate_is_told(visit):
    wild = {**WILD, "racer": ["sgd", "adam"]}
    app = ended(visit(**{**FAIR, **wild}), "Tune and race", "job:fair race")
    assert any("SGD does not race" in re.sub(r"\\", "", each.value) for each in app.warning)


def test_race_in_which_nobody_has_a_rate_cannot_be_raced(visit):
    wild = {**WILD, "racer": ["sgd"]}
    app = ended(visit(**{**FAIR, **wild}), "Tune and race", "job:fair race")
    assert button(app, "Race with these").disabled


# --- forms ----------------------------------------------------------------------------------------


def test_values_may_have_a_decimal_comma():
    assert parse_values("0,5 0.9") == (0.5, 0.9)


def test_racer_that_comes_from_a_sweep_makes_a_link(visit):
    app = press(ended(visit(**SWEEP)), "Add as a racer")
    assert app.query_params["racer"][-1] == format_racer(Racer(racers(app)[-1]))
