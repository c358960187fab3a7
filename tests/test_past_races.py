"""Finished races of a session: kept, named, pinned, compared, removed, brought back."""

import json
import re
import time

import pytest

from labcore.differences import ranking, together
from labcore.events import Diverged
from labcore.optimizers import SGD, Adam, Momentum
from labcore.race import MAX_RACERS, RaceConfig, RaceHistory, Racer, race
from labui.past_races import MOST_PINNED, MOST_RACES, PAST, PastRace
from tests.test_pages import press

FAST = {"engine": ["from scratch"], "pace": ["max"], "batch_size": ["100"], "epochs": ["1"]}
RACE = {**FAST, "racer": ["sgd", "adam"]}


def followed(**settings):
    racers = settings.pop("racers", (Racer(SGD()), Racer(Adam()), Racer(Momentum(), "Mine")))
    config = RaceConfig(
        **{"racers": racers, "engine": "from scratch", "batch_size": 300, "epochs": 1} | settings
    )
    history = RaceHistory(config)
    for event in race(config):
        history.add(event)
    return history


@pytest.fixture(scope="module")
def finished():
    return followed()


# --- several races as one -------------------------------------------------------------------------


def test_ranking_begins_with_the_smallest_loss_and_leaves_out_the_diverged(finished):
    losses = [lane.latest.loss for lane in ranking(finished)]
    assert losses == sorted(losses)
    assert len(losses) == 3
    wild = followed(racers=(Racer(SGD(lr=9.0), "Wild"), Racer(SGD())), batch_size=10, epochs=2)
    assert isinstance(wild.lanes["Wild"].outcome, Diverged)
    assert [lane.racer.name for lane in ranking(wild)] == ["SGD"]


@pytest.mark.parametrize("number", [1, 2, 3, MAX_RACERS])
def test_races_share_the_chart(finished, number):
    shown = together({f"#{n}": finished for n in range(number)})
    each = min(3, MAX_RACERS // number)
    best = [lane.racer.name for lane in ranking(finished)[:each]]
    assert list(shown.lanes) == [f"#{n} {name}" for n in range(number) for name in best]
    assert [racer.name for racer in shown.config.racers] == list(shown.lanes)


def test_shared_chart_has_the_losses_of_the_races(finished):
    shown = together({"#1": finished, "#2": finished})
    for title in ("#1", "#2"):
        assert list(shown.lanes[f"{title} Mine"].points) == list(finished.lanes["Mine"].points)


def test_exact_minimum_is_drawn_where_all_have_it(finished):
    assert together({"#1": finished, "#2": finished}).floor == finished.floor
    network = followed(model="hidden")
    assert together({"#1": finished, "#2": network}).floor is None


def test_long_names_stay_apart():
    long = followed(racers=(Racer(SGD(), "x" * 23 + "a"), Racer(SGD(lr=0.1), "x" * 23 + "b")))
    assert len(together({"#100": long}).lanes) == 2


# --- on the page ----------------------------------------------------------------------------------


def look(app, option):
    group = next(each for each in app.button_group if each.label == "Look at")
    return group.set_value(option).run()


def raced(app):
    press(app, "Start")
    assert app.session_state["job:race"].wait(30)
    time.sleep(0.05)
    return app.run()


def table(app):
    return app.dataframe[0].value.to_dict("records")


def edited(app, row, **values):
    """Rerun with an edit of the table, which AppTest cannot make, as a browser would send it."""
    editor = app.dataframe[0].proto.id
    by_app = app._tree.get_widget_states

    def states():
        found = by_app()
        edit = found.widgets.add()
        edit.id = editor
        edit.string_value = json.dumps({"edited_rows": {str(row): values}})
        return found

    app._tree.get_widget_states = states
    return app.run()


def sentences(app):
    elements = [*app.markdown, *app.caption, *app.info, *app.warning]
    return re.sub(r"\\(.)", r"\1", " ".join(each.value for each in elements))


def drawn(app):
    """The description of the picture, which names the curves."""
    return json.loads(app.get("vega_lite_chart")[0].proto.spec)["description"]


def kept(app):
    return app.session_state[PAST]


def with_races(app, history, number):
    app.session_state[PAST] = [PastRace(n, history) for n in range(1, number + 1)]
    return look(app, "past")


def test_before_the_first_race_it_says_what_will_be_here(visit):
    assert "No race has finished in this session" in sentences(visit(**RACE, look="past"))


def test_finished_races_are_kept_the_last_one_first(visit):
    app = raced(visit(**RACE))
    next(each for each in app.number_input if each.label == "Epochs").set_value(2).run()
    shown = table(look(raced(app), "past"))
    assert [row["epochs"] for row in shown] == ["2", "1"]
    assert [row["racers"] for row in shown] == ["SGD, Adam"] * 2


def test_winner_and_loss_are_those_of_the_race(visit):
    app = raced(visit(**RACE))
    lanes = app.session_state["job:race"]._history.lanes
    best = min(lanes, key=lambda name: lanes[name].latest.loss)
    [row] = table(look(app, "past"))
    assert (row["won"], row["loss (½ MSE)"]) == (best, lanes[best].latest.loss)


def test_race_is_kept_once(visit):
    app = raced(visit(**RACE))
    app.run()
    assert len(table(look(app, "past"))) == 1


@pytest.mark.parametrize("label", ["Reset", "New seed", "All five"])
def test_race_outlives_its_picture(visit, label):
    app = press(raced(visit(**RACE)), label)
    assert len(table(look(app, "past"))) == 1


def test_race_that_was_stopped_is_not_kept(visit):
    app = press(visit(**{**RACE, "epochs": ["10000"]}), "Start")
    press(app, "Stop")
    assert app.session_state["job:race"].wait(20)
    assert "No race has finished" in sentences(look(app, "past"))


def test_last_race_is_drawn_where_none_is_pinned(visit, finished):
    app = with_races(visit(**RACE), finished, 3)
    assert "#3 SGD" in drawn(app)
    assert "#1 SGD" not in drawn(app)


def test_pinned_races_are_drawn_together(visit, finished):
    app = with_races(visit(**RACE), finished, 3)
    edited(app, 2, pin=True)
    edited(app, 1, pin=True)
    assert all(f"#{n} SGD" in drawn(app) for n in (1, 2))
    assert "#3 SGD" not in drawn(app)


def test_one_pin_too_many_is_a_sentence(visit, finished):
    app = with_races(visit(**RACE), finished, MOST_RACES)
    for each in kept(app)[:MOST_PINNED]:
        each.pinned = True
    edited(app.run(), 0, pin=True)
    assert f"room for {MOST_PINNED} pinned races; unpin one first" in sentences(app)
    assert sum(each.pinned for each in kept(app)) == MOST_PINNED


def test_hundred_races_are_not_all_kept_but_the_pinned_ones_are(visit, finished):
    app = with_races(visit(**RACE), finished, MOST_RACES)
    for each in kept(app)[:MOST_PINNED]:
        each.pinned = True
    for _ in range(3):
        look(app, "curves")
        raced(app)
    numbers = [each.number for each in kept(app)]
    assert len(numbers) == MOST_RACES
    assert numbers[:MOST_PINNED] == list(range(1, MOST_PINNED + 1))
    assert numbers[MOST_PINNED] == MOST_PINNED + 4


def test_race_can_be_named(visit, finished):
    app = edited(with_races(visit(**RACE), finished, 2), 0, name=" small *steps* ")
    assert [row["name"] for row in table(app)] == ["small *steps*", ""]
    assert "#2 small *steps* and #1: The two races" in sentences(app)


def test_race_can_be_removed_unless_it_is_pinned(visit, finished):
    app = with_races(visit(**RACE), finished, 2)
    kept(app)[0].pinned = True
    app.run()
    [remove] = [each for each in app.multiselect if each.label == "Remove races"]
    assert remove.options == ["#2"]
    remove.set_value(["#2"]).run()
    press(app, "Remove")
    assert [row["race"] for row in table(app)] == ["#1"]


def test_page_says_in_which_setting_two_races_differ(visit):
    app = raced(visit(**RACE))
    next(each for each in app.number_input if each.label == "Batch size").set_value(50).run()
    app = look(raced(app), "past")
    assert "differ in one setting, batch size: 50 in the first, 100 in the second." in sentences(
        app
    )


def test_settings_come_back_with_the_racers(visit):
    app = visit(**RACE)
    history = followed(seed=7, model="hidden", objective="half_mse", hidden_units=3)
    app = press(with_races(app, history, 1), "Load settings")
    draft = app.session_state["draft:race"]
    assert draft.race() == history.config
    assert draft.values["look"] == "curves"
    assert app.query_params["seed"] == "7"
