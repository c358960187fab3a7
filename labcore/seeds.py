"""The notes' two LeNets over again from several seeds: what chance does, and what a device does.

The notes report one run on one device and one on two. Here both are trained from each of several
seeds in turn, so that the range over seeds stands beside the difference that a device makes.
"""

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from statistics import median

from labcore.classification import ClassificationConfig, train_classifier
from labcore.config import Config, choice, number
from labcore.datasets.fashion_mnist import FashionMNIST
from labcore.events import ClassificationEvent, Diverged, EpochEvaluated
from labcore.findings import only_devices_differ, standard_deviations
from labcore.models import INITIALISATIONS, MODELS
from labcore.reported import FASHION_MNIST_RUNS, ReportedRun

SAMPLES = {"embedded": 6_000, "all": 60_000}
"""Training images that may be taken."""


def notes_pair() -> tuple[ReportedRun, ReportedRun]:
    """The notes' runs that differ in nothing but the devices, fewer first."""
    [pair] = only_devices_differ(FASHION_MNIST_RUNS)
    return pair


@dataclass(frozen=True, kw_only=True)
class SeedsConfig(Config):
    """Which runs are repeated, and how often; the rest is as in the notes."""

    name = "seeds"

    sample: str = choice(
        "training images",
        "embedded",
        {"embedded": "6,000, embedded", "all": "all 60,000"},
        help="All are the notes', and take ten times as long; they must be on this machine.",
    )
    start: str = choice(
        "initial weights",
        "he",
        {name: each.label for name, each in INITIALISATIONS.items()},
        help="The notes start from N(0, 0.01²), which needs more steps to begin to learn than ten "
        "epochs of 6,000 images have.",
    )
    epochs: int = number("epochs", 10, 1, 100, log=True, help="Of every run; the notes train 10.")
    seeds: int = number("seeds", 3, 2, 20, help="Runs on each number of devices.")
    seed: int = number("first seed", 0, 0, 2**31 - 20, help="The others follow it.")

    @property
    def devices(self) -> tuple[int, int]:
        """Numbers of devices to compare."""
        few, many = notes_pair()
        return few.devices, many.devices

    def run(self, devices: int, seed: int) -> ClassificationConfig:
        """One of the runs."""
        notes, _ = notes_pair()
        return ClassificationConfig(
            model=notes.model,
            replicas=devices,
            images=SAMPLES[self.sample],
            batch_size=notes.batch_size,
            lr=notes.lr,
            initialisation=self.start,
            epochs=self.epochs,
            seed=seed,
        )


@dataclass(frozen=True, slots=True)
class SeedEvaluated:
    """An epoch of one of the runs is tested.

    Attributes:
        devices: of the run.
        seed: of the run.
        epoch: from 1.
        accuracy: on the test images.
    """

    devices: int
    seed: int
    epoch: int
    accuracy: float


@dataclass(frozen=True, slots=True)
class SeedDiverged:
    """One of the runs is over early."""

    devices: int
    seed: int


SeedsEvent = ClassificationEvent | SeedEvaluated | SeedDiverged


def over_seeds(
    config: SeedsConfig, data: FashionMNIST | None = None
) -> Generator[SeedsEvent, None, None]:
    """Train on each number of devices from each seed, the devices of one seed after one another.

    Args:
        config: which runs.
        data: the images; by default what `fashion_mnist.load` finds.

    Yields:
        All that `train_classifier` does, with a `SeedEvaluated` after each `EpochEvaluated` and a
        `SeedDiverged` after a `Diverged`.

    Raises:
        DataError: fewer images than asked for.
    """
    for seed in range(config.seed, config.seed + config.seeds):
        for devices in config.devices:
            for event in train_classifier(config.run(devices, seed), data):
                yield event
                if isinstance(event, EpochEvaluated):
                    yield SeedEvaluated(devices, seed, event.epoch, event.accuracy)
                if isinstance(event, Diverged):
                    yield SeedDiverged(devices, seed)


@dataclass(frozen=True, slots=True)
class Spread:
    """Test accuracies of one number of devices after one epoch, over the seeds so far.

    Attributes:
        devices: how many.
        epoch: from 1.
        low: the smallest.
        middle: their median.
        high: the largest.
        runs: how many have come so far.
    """

    devices: int
    epoch: int
    low: float
    middle: float
    high: float
    runs: int


class SeedsHistory:
    """What is known so far: `add` takes the events of `over_seeds` one by one.

    Args:
        config: which runs.

    Attributes:
        curves: test accuracy after each epoch, by devices and seed.
        diverged: devices and seed of runs that are over early.
    """

    def __init__(self, config: SeedsConfig) -> None:
        self.config = config
        self.curves: dict[tuple[int, int], list[float]] = {}
        self.diverged: list[tuple[int, int]] = []

    def add(self, event: object) -> None:
        """Take in one event."""
        match event:
            case SeedEvaluated():
                self.curves.setdefault((event.devices, event.seed), []).append(event.accuracy)
            case SeedDiverged():
                self.diverged.append((event.devices, event.seed))

    def progress(self) -> tuple[float, str]:
        """Share that is done, and where the runs are in words."""
        epochs = self.config.epochs
        runs = 2 * self.config.seeds
        done = sum(map(len, self.curves.values()))
        # What a run that is over early has left out is done, too.
        done += sum(epochs - len(self.curves.get(run, ())) for run in self.diverged)
        if done == 0:
            return 0.0, f"run 1 of {runs}"
        run, epoch = divmod(done - 1, epochs)
        return done / (runs * epochs), f"run {run + 1} of {runs}, epoch {epoch + 1} done"

    def spreads(self) -> list[Spread]:
        """By devices and epoch, over the seeds that have come so far."""
        values: dict[tuple[int, int], list[float]] = defaultdict(list)
        for (devices, _), curve in self.curves.items():
            for epoch, accuracy in enumerate(curve, start=1):
                values[devices, epoch].append(accuracy)
        return [
            Spread(devices, epoch, min(each), median(each), max(each), len(each))
            for (devices, epoch), each in sorted(values.items())
        ]

    def finals(self) -> dict[int, dict[int, float]]:
        """By devices and seed: the accuracy of runs that have come to their last epoch."""
        found: dict[int, dict[int, float]] = {devices: {} for devices in self.config.devices}
        for (devices, seed), curve in self.curves.items():
            if len(curve) == self.config.epochs:
                found[devices][seed] = curve[-1]
        return found

    def verdict(self) -> str:
        """What the runs that have ended say of the notes' two, in sentences."""
        few, many = self.config.devices
        finals = self.finals()
        both = sorted(finals[few].keys() & finals[many])
        if not both:
            return "No pair of runs from the same seed has ended yet."
        groups = [[finals[devices][seed] for seed in both] for devices in (few, many)]
        ranges = " and ".join(
            f"{min(group):.3f} to {max(group):.3f} on {named(devices)}"
            for devices, group in zip((few, many), groups, strict=True)
        )
        changes = [other - one for one, other in zip(*groups, strict=True)]
        epochs, seeds = self.config.epochs, len(both)
        words = (
            f"{MODELS[notes_pair()[0].model].label}, {SAMPLES[self.config.sample]:,} images, "
            f"{seeds} seed{'s' * (seeds > 1)}: after {epochs} epoch{'s' * (epochs > 1)} test "
            f"accuracy {ranges}. From the same seed the second device changed {min(changes):+.3f} "
            f"to {max(changes):+.3f}."
        )
        if len(both) < 2:
            return words
        one, other = notes_pair()
        gap = other.accuracy - one.accuracy
        if all(max(group) == min(group) for group in groups):
            return f"{words} All seeds end alike, so nothing can be said of the notes' gap."
        away = standard_deviations(gap, groups)
        return (
            f"{words} The notes' gap of {gap:.2f} is {away:.1f} standard deviations of the "
            "difference of two such runs."
        )


def named(devices: int) -> str:
    """A number of devices in words."""
    return f"{devices} device{'s' * (devices > 1)}"
