"""One data-parallel step under the magnifying glass: six moves, with or without a classic bug.

A `Trainer` takes the steps of k replicas of LeNet on real minibatches, with the functions that
training uses, and beside them those of one device: the truth that they should equal. It runs on the
CPU, so the same config gives the same numbers everywhere, up to rounding.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor

from labcore.bugs import BUGS
from labcore.classification import EXPLODED
from labcore.collectives import ALLREDUCE
from labcore.config import Config, ConfigError, choice, number
from labcore.datasets import fashion_mnist
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import Diverged
from labcore.models import INITIALISATIONS, LENET_NAMES, LENET_SHAPES
from labcore.replicas import Replicas, StepReport, difference
from labcore.schedules import Schedule
from labcore.splitting import PARTITIONS, weighted
from labcore.step_record import (
    MOVES,
    AllreduceMove,
    Move,
    State,
    StepFacts,
    StepRecord,
    Window,
    as_matrix,
    finite,
    view,
)
from labcore.step_words import code, sentences

IMAGES = 6_000
"""Training images from which minibatches are drawn: those that every machine has."""


@dataclass(frozen=True, kw_only=True)
class TrainingStepConfig(Config):
    """The step: its devices, its minibatch, what is shown of it, and what is wrong with it."""

    name = "step"

    replicas: int = number(
        "devices", 4, 1, 16, help="Copies of LeNet, each of which works on its share of the rows."
    )
    batch_size: int = number(
        "batch size", 64, 1, 512, log=True, help="Rows per step, over all devices together."
    )
    lr: float = number(
        "learning rate",
        0.1,
        1e-6,
        100.0,
        log=True,
        help="How far one step goes against the gradient of the mean loss.",
    )
    split: str = choice(
        "split",
        "chunk",
        # Without speeds, weighted is balanced.
        {name: name for name, split in PARTITIONS.items() if split is not weighted},
        help="Which rows go where. chunk cuts blocks of ⌈rows / devices⌉, which may leave the last "
        "devices empty; balanced makes them as even as can be.",
    )
    allreduce: str = choice(
        "allreduce",
        "central",
        {name: name for name in ALLREDUCE},
        help="How the gradients are summed; the notes' way is central: all into device 0 and back.",
    )
    initialisation: str = choice(
        "initialisation",
        "torch",
        {name: scheme.label for name, scheme in INITIALISATIONS.items()},
        help="How the weights start. With the notes' tiny N(0, 0.01²), LeNet stays at chance for "
        "its first 300 steps, so no bug shows in 50 steps' losses.",
    )
    parameter: str = choice(
        "parameter",
        "b1",
        {
            name: f"{name} · {' × '.join(map(str, shape))}"
            for name, shape in zip(LENET_NAMES, LENET_SHAPES, strict=True)
        },
        help="Which of LeNet's eight tensors is shown: weights and biases of two convolutions (1, "
        "2) and two dense layers (3, 4). It changes nothing in the step.",
    )
    seed: int = number(
        "seed",
        0,
        0,
        2**31 - 1,
        help="Decides the initial weights and the minibatches: same seed, same steps.",
    )
    bug: str = choice(
        "bug",
        "none",
        {"none": "none"} | {name: bug.label for name, bug in BUGS.items()},
        help="A classic mistake to make in every step, to see what it does.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas > self.batch_size:
            raise ConfigError(
                f"{self.name}: there must be at least one row per device; received {self.replicas} "
                f"devices for {self.batch_size} rows. Try batch size {self.replicas} or "
                f"{self.batch_size} device{'s' * (self.batch_size > 1)}."
            )
        self.schedule()

    def schedule(self) -> Schedule:
        """The allreduce for as many devices.

        Raises:
            ConfigError: the algorithm cannot do with so many.
        """
        return ALLREDUCE[self.allreduce](self.replicas)

    @property
    def replicas_class(self) -> type[Replicas]:
        """The replicas, with the bug if there is one."""
        return BUGS[self.bug].replicas if self.bug in BUGS else Replicas

    @property
    def harmless(self) -> bool:
        """Whether there is no bug, or one that changes nothing with these shards."""
        shards = PARTITIONS[self.split](self.batch_size, self.replicas)
        return self.bug not in BUGS or BUGS[self.bug].harmless([len(rows) for rows in shards])


class Trainer:
    """k replicas and, beside them, one device from the same start on the same minibatches.

    To reach step n again, take a new trainer and n steps.

    Args:
        config: what to do.
        data: the images; by default what `fashion_mnist.load` finds.

    Attributes:
        steps: steps taken.
        diverged: whether the replicas' loss has grown beyond use; they take no more steps then.
        reference_diverged: the same of the one device.

    Raises:
        DataError: the images are not there or damaged.
    """

    def __init__(self, config: TrainingStepConfig, data: FashionMNIST | None = None) -> None:
        self.config = config
        self.steps = 0
        self.diverged = self.reference_diverged = False
        self._data = data or fashion_mnist.load()
        self._pool = self._data.train_rows(IMAGES)
        self._order = torch.Generator().manual_seed(2 * config.seed + 1)
        self._schedule = config.schedule()
        started = perf_counter()
        self.replicas = self._replicas(config.replicas_class, config.replicas)
        self._replicated_in = perf_counter() - started
        self.reference = self._replicas(Replicas, 1)
        self._has_gradients = False

    def _replicas(self, kind: type[Replicas], world_size: int) -> Replicas:
        # A stream of its own for the weights, as in training.
        weights = torch.Generator().manual_seed(2 * self.config.seed)
        devices = [torch.device("cpu")] * world_size
        return kind("lenet", devices, self.config.initialisation, weights)

    def step(self) -> StepRecord:
        """Take a step, and keep what is to be seen of it.

        Raises:
            ValueError: the replicas have diverged.
        """
        if self.diverged:
            raise ValueError(
                f"A step needs replicas that have not diverged; these did by step {self.steps}. "
                "Start again with a new Trainer, and a smaller learning rate or without the bug."
            )
        nothing = (None,) * self.config.replicas
        states = [State(nothing, nothing) if self.steps == 0 else self._state()]
        vectors = torch.empty(0)
        facts, moves = self._begin()
        for name in moves:
            states.append(self._state())
            if name == "backward":
                vectors = torch.stack([_gradient(each).flatten() for each in self._shown()])
        return self._record(facts, states, vectors)

    def advance(self) -> StepFacts:
        """Take a step of whoever has not diverged, and keep nothing but its numbers.

        Returns:
            The numbers: NaN and empty lists for whoever took no step.
        """
        facts, moves = self._begin()
        for _ in moves:
            pass
        return facts

    def _begin(self) -> tuple[StepFacts, Iterator[str]]:
        """The one device's step, done, and the replicas' moves, to be made one by one."""
        self.steps += 1
        facts = StepFacts(self.steps)
        rows = self._pool[torch.randperm(IMAGES, generator=self._order)[: self.config.batch_size]]
        images, labels = self._data.train_images[rows], self._data.train_labels[rows]
        if not self.reference_diverged:
            self._step_reference(facts, images, labels)
        return facts, iter(()) if self.diverged else self._moves(facts, images, labels)

    def _step_reference(self, facts: StepFacts, images: Tensor, labels: Tensor) -> None:
        one = self.reference.ranks[0]
        before = one.flat.clone()
        step = self.reference.step(
            images,
            labels,
            split=PARTITIONS[self.config.split],
            schedule=ALLREDUCE["central"](1),
            lr=self.config.lr,
            momentum=0.0,
        )
        facts.reference_loss = sum(_to_the_end(step).losses) / len(labels)
        facts.reference_length = _norms([one.flat - before])[0]
        facts.reference_diverged = self._divergence(facts.reference_loss)
        self.reference_diverged = facts.reference_diverged is not None

    def _moves(self, facts: StepFacts, images: Tensor, labels: Tensor) -> Iterator[str]:
        """One step of the replicas, with a stop after each move."""
        them, config = self.replicas, self.config
        facts.apart = them.drift()
        facts.seconds["replicate"] = self._replicated_in if facts.step == 1 else 0.0
        yield "replicate"
        with _timed(facts, "split"):
            shards = them.split(images, labels, PARTITIONS[config.split])
        facts.rows = [len(own) for _, own in shards]
        yield "split"
        with _timed(facts, "forward"):
            losses = [them.forward(rank, *shard) for rank, shard in enumerate(shards)]
        self._note_losses(facts, [loss.item() for loss in losses])
        yield "forward"
        with _timed(facts, "backward"):
            for replica, loss in zip(them.ranks, losses, strict=True):
                replica.backward(loss)
        self._has_gradients = True
        facts.norms = _norms([replica.gradient for replica in them.ranks])
        yield "backward"
        with _timed(facts, "allreduce"):
            them.allreduce(self._schedule)
        facts.sums = _norms([replica.gradient for replica in them.ranks])
        yield "allreduce"
        before = [replica.flat.clone() for replica in them.ranks]
        with _timed(facts, "update"):
            them.update(config.lr, 0.0, config.batch_size)
        self._note_update(facts, before)
        yield "update"

    def _note_losses(self, facts: StepFacts, passed: list[float]) -> None:
        averaged = self.replicas.reduction == "mean"
        facts.passed = passed
        facts.losses = [
            (loss if averaged else loss / rows) if rows else None
            for loss, rows in zip(passed, facts.rows, strict=True)
        ]
        means = zip(facts.losses, facts.rows, strict=True)
        facts.loss = sum(mean * rows for mean, rows in means if mean is not None) / sum(facts.rows)
        facts.diverged = self._divergence(facts.loss)
        self.diverged = facts.diverged is not None

    def _note_update(self, facts: StepFacts, before: list[Tensor]) -> None:
        them = self.replicas.ranks
        facts.lengths = _norms([each.flat - old for each, old in zip(them, before, strict=True)])
        facts.drift = self.replicas.drift()
        if not self.reference_diverged:
            facts.differences = [difference(each, self.reference.ranks[0]) for each in them]

    def _divergence(self, loss: float) -> Diverged | None:
        if loss <= EXPLODED:
            return None
        epochs = self.steps * self.config.batch_size / IMAGES
        return Diverged(self.steps, epochs, self.config.lr, None, finite(loss))

    def _shown(self) -> list[Tensor]:
        """The chosen parameter on each rank."""
        index = LENET_NAMES.index(self.config.parameter)
        return [list(replica.module.parameters())[index] for replica in self.replicas.ranks]

    def _state(self) -> State:
        shown = self._shown()
        gradients = [view(_gradient(each)) if self._has_gradients else None for each in shown]
        return State(tuple(map(view, shown)), tuple(gradients))

    def _record(self, facts: StepFacts, states: Sequence[State], vectors: Tensor) -> StepRecord:
        config, schedule = self.config, self._schedule
        words = sentences(
            facts, self.replicas, config.split, config.allreduce, len(schedule.rounds)
        )
        quoted = code(config.replicas_class, config.split, config.allreduce)
        moves = {
            name: Move(name, words[name], quoted[name], facts.seconds[name], before, after)
            for name, (before, after) in zip(MOVES, pairwise(states), strict=True)
        }
        moves["allreduce"] = AllreduceMove(
            **vars(moves["allreduce"]),
            schedule=schedule,
            vectors=vectors,
            memory=self.memory,
            play=self.replicas.play,
        )
        shape = tuple(self._shown()[0].shape)
        window = Window(*as_matrix(self._shown()[0]).shape)
        return StepRecord(config.parameter, shape, window, tuple(moves.values()), facts)

    @property
    def memory(self) -> tuple[int, ...]:
        """Per rank the first rank in whose memory its parameters are: its own, if all is well."""
        starts = [replica.flat.data_ptr() for replica in self.replicas.ranks]
        return tuple(map(starts.index, starts))


@contextmanager
def _timed(facts: StepFacts, move: str) -> Iterator[None]:
    started = perf_counter()
    yield
    facts.seconds[move] = perf_counter() - started


def _norms(vectors: Sequence[Tensor]) -> list[float]:
    return [float(vector.norm()) for vector in vectors]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None  # it is a view of the flat gradient from the start
    return parameter.grad


def _to_the_end(step: Generator[object, None, StepReport]) -> StepReport:
    while True:
        try:
            next(step)
        except StopIteration as end:
            report: StepReport = end.value
            return report
