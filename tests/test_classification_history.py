"""What a page knows of a classification run: everything that the run reported, and no more."""

import pytest
import torch

from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_history import ClassificationHistory
from labcore.events import (
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    EpochEvaluated,
    ImagesTested,
    Learnt,
    MinibatchTrained,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.replicas import PHASES

CONFIG = ClassificationConfig(images=100, batch_size=20, replicas=2, epochs=2)


@pytest.fixture(scope="module")
def events() -> list[ClassificationEvent]:
    return list(train_classifier(CONFIG))


def followed(events: list[ClassificationEvent]) -> ClassificationHistory:
    history = ClassificationHistory(CONFIG, "here")
    for event in events:
        history.add(event)
    return history


def until(events: list[ClassificationEvent], kind: type, count: int) -> list[ClassificationEvent]:
    """The events up to the one that is the count-th of its kind."""
    places = [place for place, event in enumerate(events) if isinstance(event, kind)]
    return events[: places[count - 1] + 1]


def of(events: list[ClassificationEvent], kind: type) -> list[ClassificationEvent]:
    return [event for event in events if isinstance(event, kind)]


# --- what is kept ---------------------------------------------------------------------------------


def test_it_begins_with_its_size(events: list[ClassificationEvent]) -> None:
    assert followed(events[:1]).started == Started(10, 5, None, None)


def test_every_minibatch_of_a_short_run_is_kept(events: list[ClassificationEvent]) -> None:
    assert list(followed(events).minibatches) == of(events, MinibatchTrained)


def test_the_latest_is_the_last_minibatch(events: list[ClassificationEvent]) -> None:
    some = until(events, MinibatchTrained, 3)
    assert followed(some).latest is some[-1]


def test_the_step_in_hand_is_not_taken_yet(events: list[ClassificationEvent]) -> None:
    history = followed(until(events, MinibatchTrained, 3))
    assert history.taken == of(events, StepTaken)[1]


def test_every_evaluation_is_kept(events: list[ClassificationEvent]) -> None:
    assert followed(events).epochs == of(events, EpochEvaluated)


def test_what_it_learnt_is_that_of_the_last_evaluation(events: list[ClassificationEvent]) -> None:
    assert followed(events).learnt is of(events, Learnt)[-1]


@pytest.mark.parametrize("phase", PHASES)
def test_the_time_of_a_phase_is_the_sum_over_the_steps(
    phase: str, events: list[ClassificationEvent]
) -> None:
    total = sum(event.phases[phase] for event in events if isinstance(event, MinibatchTrained))
    assert followed(events).phases[phase] == pytest.approx(total)


def test_the_phases_sum_to_the_training_time(events: list[ClassificationEvent]) -> None:
    history = followed(events)
    assert sum(history.phases.values()) == pytest.approx(history.seconds)


def test_it_ends_with_the_summary(events: list[ClassificationEvent]) -> None:
    assert isinstance(followed(events).outcome, ClassifierTrained)


def test_a_run_that_goes_on_has_no_outcome(events: list[ClassificationEvent]) -> None:
    assert followed(events[:-1]).outcome is None


def test_a_diverged_run_keeps_its_curve(events: list[ClassificationEvent]) -> None:
    diverged = Diverged(4, 0.8, 100.0, None)
    history = followed([*until(events, StepTaken, 3), diverged])
    assert (history.outcome, len(history.minibatches)) == (diverged, 3)


# --- within a step --------------------------------------------------------------------------------


def test_within_a_step_it_says_which_replica_is_done(events: list[ClassificationEvent]) -> None:
    history = followed(until(events, ShardDone, 2))
    assert history.within == ShardDone("forward", 1, 2)


def test_between_steps_nothing_is_within(events: list[ClassificationEvent]) -> None:
    assert followed(until(events, StepTaken, 1)).within is None


def test_within_an_evaluation_it_says_how_many_images_are_done(
    events: list[ClassificationEvent],
) -> None:
    assert followed(until(events, ImagesTested, 1)).within == ImagesTested(17, 17)


def test_after_an_evaluation_nothing_is_within(events: list[ClassificationEvent]) -> None:
    assert followed(until(events, EpochEvaluated, 1)).within is None


# --- speed ----------------------------------------------------------------------------------------


def minibatch(step: int, epochs: float, seconds: float) -> MinibatchTrained:
    phases = dict.fromkeys(PHASES, seconds / step / len(PHASES))
    return MinibatchTrained(
        step, epochs, 2.3, seconds, phases, (10, 10), (2.3, 2.3), (1.0, 1.0), 1.0, 0.0, None
    )


def test_time_left_is_that_of_the_steps_to_come_at_the_speed_so_far() -> None:
    history = followed([Started(10, 5, None, None), minibatch(4, 0.8, 2.0)])
    assert history.seconds_left == pytest.approx(3.0)


def test_images_per_second_are_training_images_over_training_time() -> None:
    history = followed([Started(10, 5, None, None), minibatch(4, 0.8, 2.0)])
    assert history.images_per_second == pytest.approx(40.0)


@pytest.mark.parametrize("name", ["seconds_left", "images_per_second", "latest", "taken"])
def test_before_the_first_step_nothing_is_known(
    name: str, events: list[ClassificationEvent]
) -> None:
    assert getattr(followed(events[:1]), name) is None


def test_no_time_is_left_at_the_end(events: list[ClassificationEvent]) -> None:
    assert followed(events).seconds_left == 0


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_knows_the_same(events: list[ClassificationEvent]) -> None:
    history = followed(events)
    other = history.copy()
    assert other.__dict__.keys() == history.__dict__.keys()
    assert list(other.minibatches) == list(history.minibatches)
    assert (other.epochs, other.phases) == (history.epochs, history.phases)


@pytest.mark.parametrize("known", ["minibatches", "epochs", "phases", "latest", "outcome"])
def test_a_copy_stands_still_while_the_run_goes_on(
    known: str, events: list[ClassificationEvent]
) -> None:
    half = until(events, StepTaken, 3)
    history = followed(half)
    other = history.copy()
    for event in events[len(half) :]:
        history.add(event)

    def content(of: ClassificationHistory) -> object:
        value = getattr(of, known)
        return list(value) if known == "minibatches" else value

    assert content(other) == content(followed(half)) != content(history)


def test_probabilities_of_what_it_learnt_sum_to_one(events: list[ClassificationEvent]) -> None:
    learnt = followed(events).learnt
    assert learnt is not None
    torch.testing.assert_close(learnt.probabilities.sum(dim=1), torch.ones(len(learnt.images)))
