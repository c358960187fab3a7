"""Events on their way between processes: what arrives is what was sent."""

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from labcore.events import (
    Checkpointed,
    ClassificationEvent,
    ClassifierTrained,
    Diverged,
    EpochEvaluated,
    Learnt,
    MinibatchTrained,
    ProcessesAwaited,
    Resumed,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.events import ImagesTested as ImagesSeen  # pytest collects what is named Test…
from labcore.wire import KINDS, pack, unpack

TRAINED = MinibatchTrained(
    step=3,
    epochs=0.1 + 0.2,
    loss=2.3,
    seconds=1e-7,
    phases={"split": 0.1, "forward": 1 / 3},
    rows=(2, 0),
    losses=(2.3, None),
    norms=(0.5, math.inf),
    norm=0.25,
    drift=0.0,
    difference=None,
    rank_phases=({"split": 0.1}, {"split": 0.2}),
)
EVALUATED = EpochEvaluated(1, 3, 0.5, ((1, 0), (2, 3)), 1.5, 100.0)
EVENTS: list[ClassificationEvent] = [
    Started(10, 5, None, None),
    ShardDone("forward", 1, 2),
    TRAINED,
    StepTaken(3, 0.3),
    ImagesSeen(250, 1000),
    EVALUATED,
    Diverged(3, 0.3, 0.1, None, None),
    ClassifierTrained(10, 2, 0.5, 1.5, "2 processes"),
    ProcessesAwaited(1, 2, 0.05),
    Checkpointed(3, 0.3, "/tmp/a file", "No space left on device"),
    Resumed(3, 0.3, (TRAINED, TRAINED), (EVALUATED,), {"split": 0.1}),
]


def sent(event: ClassificationEvent, folder: Path) -> ClassificationEvent:
    return unpack(json.loads(json.dumps(pack(event, folder))))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_arrives_as_it_was_sent(event: ClassificationEvent, tmp_path: Path) -> None:
    assert sent(event, tmp_path) == event


def test_every_kind_is_tried_here() -> None:
    assert {type(event) for event in EVENTS} | {Learnt} == set(KINDS.values())


def test_tensors_arrive_bit_for_bit_and_leave_no_file(tmp_path: Path) -> None:
    learnt = Learnt(2, torch.tensor([3, 7]), torch.rand(2, 10), torch.rand(4, 3, 3))
    arrived = sent(learnt, tmp_path)
    for each in fields(Learnt)[1:]:
        own, other = getattr(learnt, each.name), getattr(arrived, each.name)
        assert torch.equal(own, other)
        assert own.dtype == other.dtype
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_none_arrives_as_such(tmp_path: Path) -> None:
    arrived = sent(Started(1, 1, math.nan, None), tmp_path)
    assert isinstance(arrived, Started)
    assert arrived.floor is not None
    assert math.isnan(arrived.floor)


@pytest.mark.parametrize(
    "line",
    [{}, {"event": "StepTaken"}, {"event": "Path"}, {"event": "StepTaken", "step": 1}],
    ids=str,
)
def test_what_is_no_event_is_refused(line: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="This is no event of a run"):
        unpack(line)
