"""How fast regression runs are: `python -m tests.benchmarks.bench_regression`, about a minute.

First table: our engines against a plain loop as the notes describe it, per epoch, evaluation and
events included on both sides. Second table: a run in the job pool that is read every half second,
as a page does it, against iterating over the same events. Third table: a sweep of 32 learning
rates against one run from scratch. Both sides take turns in one process, so
that a busy machine slows down both; what counts is the median over rounds of their ratio.
Exits with 1 if a requirement is missed.
"""

import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from labcore.datasets import airfoil
from labcore.jobs import Pool
from labcore.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer, RMSprop
from labcore.race import RaceConfig, RaceHistory, Racer, race
from labcore.regression import RegressionConfig, train_regression
from labcore.sweep import SweepConfig, sweep

Side = tuple[str, type[Optimizer]]

EPOCHS = 4
ROUNDS = 9
SPEEDUPS: dict[Side, float] = {
    ("torch", SGD): 5.0,
    ("torch", Adam): 4.0,
    ("from scratch", SGD): 40.0,
    ("from scratch", Adam): 15.0,
}
"""How many times faster than the plain loop each engine must be."""

POOL_EPOCHS = {"torch": 80, "from scratch": 600}
"""Enough for two seconds or more, so that a run is read several times."""
POOL_ROUNDS = 5
POLL_SECONDS = 0.5
POOL_SLOWDOWN = 1.10
"""How many times as long as headless a run in the pool may take."""

RATES = 32
SWEEP_COST = 3.0
"""How many times as long as one run from scratch a sweep of `RATES` learning rates may take."""

PLAIN_OPTIMIZERS: dict[type[Optimizer], Callable[..., torch.optim.Optimizer]] = {
    SGD: torch.optim.SGD,
    Adam: torch.optim.Adam,
}


def plain_epochs(make: Callable[..., torch.optim.Optimizer]) -> list[tuple[float, float]]:
    """The notes' loop: a layer, a loader, and the mean loss through the loader every 200 rows."""
    data = airfoil.load()
    rows = TensorDataset(data.features.float(), data.labels.float())
    loader = DataLoader(rows, batch_size=10, shuffle=True)
    model = nn.Linear(5, 1)
    nn.init.normal_(model.weight, std=0.01)
    loss = nn.MSELoss()
    optimizer = make(model.parameters(), lr=0.01)
    recorded, examples = [], 0
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets.reshape(-1, 1)).backward()
            optimizer.step()
            examples += len(targets)
            if examples % 200 == 0:
                # As in the notes: with autograd on.
                halves = [loss(model(x), y.reshape(-1, 1)).item() / 2 for x, y in loader]
                recorded.append((examples / len(rows), sum(halves) / len(halves)))
    return recorded


def rounds(sides: dict[Side, Callable[[], object]], number: int) -> dict[Side, list[float]]:
    """Seconds of every side in every round; the order turns round by round, the first is dropped.

    So neither side profits from a warm or an idle machine.
    """
    times: dict[Side, list[float]] = {side: [] for side in sides}
    for turn in range(number + 1):
        for side in list(sides)[:: 1 if turn % 2 else -1]:
            started = perf_counter()
            sides[side]()
            times[side].append(perf_counter() - started)
    return {side: taken[1:] for side, taken in times.items()}


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of how many times as long `slow` took."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def our_epochs(engine: str, optimizer: type[Optimizer]) -> None:
    """The same run by one of our engines, all its events taken."""
    config = RegressionConfig(engine=engine, optimizer=optimizer(lr=0.01), epochs=EPOCHS)
    for _ in train_regression(config):
        pass


def compare_with_plain() -> bool:
    """Print the first table; whether every requirement is met."""
    sides: dict[Side, Callable[[], object]] = {
        ("plain loop", optimizer): partial(plain_epochs, make)
        for optimizer, make in PLAIN_OPTIMIZERS.items()
    }
    sides |= {side: partial(our_epochs, *side) for side in SPEEDUPS}
    times = rounds(sides, ROUNDS)
    print(f"{'':14}{'optimiser':12}{'ms/epoch':>10}{'× faster':>10}{'required':>10}")
    met = True
    for side, ours in times.items():
        speedup = ratio(times["plain loop", side[1]], ours)
        required = SPEEDUPS.get(side)
        missed = required is not None and speedup < required
        met = met and not missed
        print(
            f"{side[0]:14}{side[1].label:12}{1e3 * median(ours) / EPOCHS:10.2f}{speedup:10.1f}"
            f"{required or '':>10}{'  MISSED' if missed else ''}"
        )
    return met


def headless(config: RaceConfig) -> None:
    """Take every event of a race."""
    for _ in race(config):
        pass


def in_the_pool(pool: Pool, config: RaceConfig) -> None:
    """Run a race as a job, and read its history as a page would."""
    job = pool.submit(race(config), RaceHistory(config), owner="benchmark")
    while not job.wait(POLL_SECONDS):
        with job.reading() as history:
            for lane in history.lanes.values():
                _ = list(lane.points), lane.gap, lane.arrived, lane.latest
    if job.state != "finished":
        raise RuntimeError(f"The job ended as {job.state}: {job.error}")


def compare_with_pool() -> bool:
    """Print the second table; whether the pool costs as little as required."""
    print(f"{'':14}{'headless s':>12}{'in pool s':>12}{'× as long':>12}{'allowed':>10}")
    met = True
    pool = Pool(1)
    for engine, epochs in POOL_EPOCHS.items():
        config = RaceConfig(racers=(Racer(SGD()),), engine=engine, epochs=epochs)
        sides: dict[Side, Callable[[], object]] = {
            ("headless", SGD): partial(headless, config),
            ("pool", SGD): partial(in_the_pool, pool, config),
        }
        alone, pooled = rounds(sides, POOL_ROUNDS).values()
        slowdown = ratio(pooled, alone)
        missed = slowdown > POOL_SLOWDOWN
        met = met and not missed
        print(
            f"{engine:14}{median(alone):12.2f}{median(pooled):12.2f}{slowdown:12.3f}"
            f"{POOL_SLOWDOWN:10.2f}{'  MISSED' if missed else ''}"
        )
    pool.close()
    return met


def swept(optimizer: type[Optimizer]) -> None:
    """A sweep of the same length as `our_epochs`, all its events taken."""
    config = SweepConfig(racers=(Racer(optimizer()),), rates=RATES, highest=0.1, epochs=EPOCHS)
    for _ in sweep(config):
        pass


def compare_sweeps() -> bool:
    """Print the third table; whether a sweep costs as little as required."""
    print(f"{'':14}{'one run ms':>12}{f'{RATES} rates ms':>14}{'× as long':>12}{'allowed':>10}")
    met = True
    for optimizer in (SGD, Momentum, Adagrad, RMSprop, Adam):
        sides: dict[Side, Callable[[], object]] = {
            ("one run", optimizer): partial(our_epochs, "from scratch", optimizer),
            ("sweep", optimizer): partial(swept, optimizer),
        }
        one, many = rounds(sides, ROUNDS).values()
        cost = ratio(many, one)
        missed = cost > SWEEP_COST
        met = met and not missed
        print(
            f"{optimizer.label:14}{1e3 * median(one):12.1f}{1e3 * median(many):14.1f}{cost:12.2f}"
            f"{SWEEP_COST:10.1f}{'  MISSED' if missed else ''}"
        )
    return met


def main() -> int:
    """Print all tables; 1 if a requirement is missed."""
    torch.set_num_threads(1)
    fast = compare_with_plain()
    print()
    cheap = compare_with_pool()
    print()
    parallel = compare_sweeps()
    return 0 if fast and cheap and parallel else 1


if __name__ == "__main__":
    sys.exit(main())
