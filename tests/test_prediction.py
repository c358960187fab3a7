"""Predict first: a guess is kept with the race for which it was made, and judged by its end."""

import re
import time

import pytest

from labcore.config import ConfigError
from labcore.events import Diverged, LossRecorded
from labcore.optimizers import SGD, Adam
from labcore.race import RaceConfig, RaceHistory, Racer
from labui.prediction import Guess, parse_loss, verdicts
from tests.test_pages import press

CONFIG = RaceConfig(racers=(Racer(SGD()), Racer(Adam()), Racer(SGD(), "Wild")))
FAST = {"engine": ["from scratch"], "pace": ["max"], "batch_size": ["100"], "epochs": ["1"]}
RACE = {**FAST, "racer": ["sgd", "adam"]}


def ended(**losses):
    """A race in which these racers ended at these losses, and the others diverged."""
    history = RaceHistory(CONFIG)
    for name, lane in history.lanes.items():
        if name in losses:
            lane.record(LossRecorded(600, 4.0, 0.1, losses[name]))
            lane.outcome = "finished"
        else:
            lane.outcome = Diverged(43, 0.3, 1.0, None)
    return history


def judged(guess, history):
    return {each.question: (each.guessed, each.result, each.words[:7]) for each in
            verdicts(guess, history)}  # fmt: skip


def test_right_guess_is_told_from_a_wrong_one_in_words():
    history = ended(SGD=0.3, Adam=0.25)
    right = judged(Guess("Adam", 0.251, frozenset({"Wild"})), history)
    assert right == {
        "Who wins?": ("Adam", "Adam", "✓ right"),
        "What is the winner's loss?": ("0.251", "0.2500", "✓ right"),
        "Who diverges?": ("Wild", "Wild", "✓ right"),
    }
    wrong = judged(Guess("SGD", 0.26, frozenset()), history)
    assert [words for *_, words in wrong.values()] == ["✗ not t"] * 3


def test_loss_says_by_how_much_it_was_missed():
    [_, loss, _] = verdicts(Guess("Adam", 0.3, frozenset()), ended(SGD=0.3, Adam=0.25))
    assert "off by 20.0%" in loss.words


def test_guess_without_an_opinion_is_not_judged():
    assert list(judged(Guess(None, None, frozenset()), ended(SGD=0.3))) == ["Who diverges?"]


def test_race_that_nobody_survives_has_no_winner():
    found = judged(Guess("SGD", 0.3, frozenset()), ended())
    assert found["Who wins?"][1:] == ("nobody", "✗ not t")
    assert found["What is the winner's loss?"][1:] == ("none is left", "✗ not t")


def test_guess_that_names_somebody_else_is_not_about_the_race():
    assert Guess("Adam", None, frozenset({"Wild"})).about(CONFIG)
    assert not Guess("Lion", None, frozenset()).about(CONFIG)
    assert not Guess(None, None, frozenset({"Lion"})).about(CONFIG)


def test_loss_may_have_a_decimal_comma_or_be_left_out():
    assert (parse_loss("0,25"), parse_loss(" ")) == (0.25, None)


@pytest.mark.parametrize("text", ["x", "-1", "0", "nan", "inf"])
def test_loss_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="must be a positive number; received"):
        parse_loss(text)


# --- on the page ----------------------------------------------------------------------------------


def committed(app, winner="Adam", loss="0.25"):
    next(each for each in app.selectbox if each.label == "Who wins?").set_value(winner)
    next(each for each in app.text_input if each.label == "Its loss").set_value(loss)
    return press(app, "Commit")


def raced(app):
    press(app, "Start")
    assert app.session_state["job:race"].wait(30)
    time.sleep(0.05)
    return app.run()


def verdict(app):
    if not app.table:
        return None
    shown = app.table[0].value.to_dict("list")
    return {
        name: [re.sub(r"\\(.)", r"\1", each) for each in column] for name, column in shown.items()
    }


def words(app):
    elements = [*app.markdown, *app.caption, *app.warning, *app.error]
    return re.sub(r"\\(.)", r"\1", " ".join(each.value for each in elements))


def test_guess_and_result_are_seen_together_after_the_race(visit):
    app = raced(committed(visit(**RACE)))
    lanes = app.session_state["job:race"]._history.lanes
    best = min(lanes, key=lambda name: lanes[name].latest.loss)
    shown = verdict(app)
    assert shown["your guess"] == ["Adam", "0.25", "nobody"]
    assert shown["result"] == [best, f"{lanes[best].latest.loss:.4f}", "nobody"]


def test_race_without_a_guess_shows_none(visit):
    assert verdict(raced(visit(**RACE))) is None


def test_guess_counts_for_one_race(visit):
    app = raced(committed(visit(**RACE)))
    assert verdict(raced(app)) is None


def test_committed_guess_is_repeated_and_can_be_taken_back(visit):
    app = committed(visit(**RACE))
    assert "Committed for the next start: Adam wins, with a loss of 0.25" in words(app)
    assert verdict(raced(press(app, "Take it back"))) is None


def test_wrong_loss_is_a_sentence_and_no_guess(visit):
    app = committed(visit(**RACE), loss="little")
    assert "guess: loss must be a positive number; received 'little'" in words(app)
    assert verdict(raced(app)) is None


def test_guess_about_a_racer_that_is_gone_does_not_count(visit):
    app = committed(visit(**RACE))
    press(app, "SGD")
    assert "It names somebody who does not race now" in words(app)
    assert verdict(raced(app)) is None
