"""What the notes' table of runs shows, and what it does not: found in its numbers.

Each function takes runs and returns those that stand out; `findings` puts them into words.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean, variance

from labcore.models import MODELS
from labcore.reported import FASHION_MNIST_RUNS, ReportedRun

Runs = Sequence[ReportedRun]

SEEDS: Mapping[int, tuple[float, ...]] = {1: (0.804, 0.826, 0.774), 2: (0.806, 0.826, 0.789)}
"""Test accuracy of LeNet with seeds 0, 1, 2 on 1 and on 2 replicas, after ten epochs on all images
with the notes' settings; measured by this lab."""
STUDENT = 2.776
"""97.5 % quantile of Student's t with 4 degrees of freedom, those of two groups of three runs."""


@dataclass(frozen=True)
class Finding:
    """Something odd in the table.

    Attributes:
        title: in a few words.
        words: what the numbers say, in sentences.
        runs: the rows that it is about.
    """

    title: str
    words: str
    runs: tuple[ReportedRun, ...]


def slower_with_more(runs: Runs) -> list[tuple[ReportedRun, ReportedRun]]:
    """Pairs of one model in which more devices take longer per epoch.

    Both work on the same minibatch, or on the same number of images per device: in either case
    more devices should be faster.
    """
    return [
        (few, many)
        for few, many in permutations(runs, 2)
        if few.model == many.model
        and few.devices < many.devices
        and (
            few.batch_size == many.batch_size
            or few.batch_size * many.devices == many.batch_size * few.devices
        )
        and few.seconds_per_epoch < many.seconds_per_epoch
    ]


def fell_with_batch(runs: Runs) -> list[tuple[ReportedRun, ...]]:
    """Groups of equal model, devices and learning rate in which accuracy falls with the batch."""
    return [group for group in _by_batch(runs) if _falls(group)]


def up_and_down(runs: Runs) -> list[tuple[ReportedRun, ...]]:
    """The same groups where accuracy neither only falls nor only rises with the batch."""
    return [group for group in _by_batch(runs) if not _falls(group) and not _falls(group[::-1])]


def unrepeated(runs: Runs) -> list[ReportedRun]:
    """Runs whose settings occur only once, so that nobody knows what another seed would do."""
    times = Counter(_settings(run) for run in runs)
    return [run for run in runs if times[_settings(run)] == 1]


def only_devices_differ(runs: Runs) -> list[tuple[ReportedRun, ReportedRun]]:
    """Pairs with the same model, batch and learning rate on fewer and on more devices."""
    return [
        (few, many)
        for few, many in permutations(runs, 2)
        if few.devices < many.devices
        and (few.model, few.batch_size, few.lr) == (many.model, many.batch_size, many.lr)
    ]


def standard_deviations(gap: float, groups: Sequence[Sequence[float]]) -> float:
    """How many standard deviations of the difference between two single runs a gap is.

    Args:
        gap: between two results.
        groups: results of runs that differ only in the seed, group by group, two or more in each;
            their pooled variance is taken for that of one run.
    """
    freedom = sum(len(group) - 1 for group in groups)
    pooled = sum((len(group) - 1) * variance(group) for group in groups) / freedom
    return gap / math.sqrt(2 * pooled)


def same_seed_gaps() -> list[float]:
    """By how much two replicas were better than one that started from the same seed."""
    return [two - one for one, two in zip(SEEDS[1], SEEDS[2], strict=True)]


def findings(runs: Runs = FASHION_MNIST_RUNS) -> list[Finding]:
    """All that is odd in the table, in words."""
    found = [_slower(*pair) for pair in slower_with_more(runs)]
    found += [_fell(group) for group in fell_with_batch(runs)]
    found += [_unsteady(group) for group in up_and_down(runs)]
    found += [
        _gap(few, many)
        for few, many in only_devices_differ(runs)
        if few.model == "lenet" and few.accuracy != many.accuracy
    ]
    if single := unrepeated(runs):
        found.append(
            Finding(
                "Repeated runs are missing",
                f"{len(single)} of {len(runs)} settings were run once. With one run each, nobody "
                "can tell the effect of a setting from that of the seed.",
                tuple(single),
            )
        )
    return found


def _slower(few: ReportedRun, many: ReportedRun) -> Finding:
    kept = "the same batch" if few.batch_size == many.batch_size else "as many images per device"
    return Finding(
        "More GPUs, and slower",
        f"{_name(few)} took {few.seconds_per_epoch} s per epoch, {_name(many)} "
        f"{many.seconds_per_epoch} s: {many.devices / few.devices:g} times the devices on {kept} "
        f"gave {few.seconds_per_epoch / many.seconds_per_epoch:.2f} times the speed.",
        (few, many),
    )


def _fell(group: tuple[ReportedRun, ...]) -> Finding:
    steps = " → ".join(f"{run.accuracy:.2f}" for run in group)
    batches = " → ".join(f"{run.batch_size:,}" for run in group)
    return Finding(
        "Accuracy falls with the batch",
        f"{_model(group[0])} at learning rate {group[0].lr:g}: batch {batches}, accuracy {steps}. "
        f"With {group[-1].batch_size / group[0].batch_size:g} times the batch, ten epochs have as "
        "many times fewer steps, and at the same learning rate none is longer.",
        group,
    )


def _unsteady(group: tuple[ReportedRun, ...]) -> Finding:
    steps = " → ".join(f"{run.accuracy:.2f}" for run in group)
    return Finding(
        "Up and down with the batch",
        f"{_model(group[0])} on {group[0].devices} GPUs at learning rate {group[0].lr:g}: accuracy "
        f"{steps} as the batch grows. No rule of the batch explains both; chance is in it.",
        group,
    )


def _gap(few: ReportedRun, many: ReportedRun) -> Finding:
    gap = many.accuracy - few.accuracy
    away = standard_deviations(gap, list(SEEDS.values()))
    within = "within" if abs(away) < STUDENT else "beyond"
    gaps = same_seed_gaps()
    return Finding(
        f"{few.accuracy:.2f} and {many.accuracy:.2f} may be one and the same",
        f"The only rows that differ in nothing but the devices: {few.accuracy:.2f} on "
        f"{few.devices}, {many.accuracy:.2f} on {many.devices}. In this lab seeds alone gave "
        f"{min(SEEDS[1]):.3f} to {max(SEEDS[1]):.3f} on one device. A gap of {gap:.2f} is "
        f"{away:.1f} standard deviations of the difference of two runs, {within} what six runs "
        f"leave to chance ({STUDENT:.1f}). From the same seed, the second device changed "
        f"{min(gaps):+.3f} to {max(gaps):+.3f}, and {fmean(gaps):+.3f} on average.",
        (few, many),
    )


def _by_batch(runs: Runs) -> list[tuple[ReportedRun, ...]]:
    """Runs of equal model, devices and learning rate, by batch size, of which there are several."""
    groups: dict[tuple[object, ...], list[ReportedRun]] = defaultdict(list)
    for run in runs:
        groups[run.model, run.devices, run.lr].append(run)
    ordered = (sorted(group, key=lambda run: run.batch_size) for group in groups.values())
    return [tuple(group) for group in ordered if len({run.batch_size for run in group}) > 1]


def _falls(group: Sequence[ReportedRun]) -> bool:
    accuracies = [run.accuracy for run in group]
    return accuracies == sorted(set(accuracies), reverse=True)


def _settings(run: ReportedRun) -> tuple[object, ...]:
    return run.model, run.devices, run.batch_size, run.lr


def _model(run: ReportedRun) -> str:
    return MODELS[run.model].label


def _name(run: ReportedRun) -> str:
    devices = "1 GPU" if run.devices == 1 else f"{run.devices} GPUs"
    return f"{_model(run)} on {devices} at batch {run.batch_size:,}"
