"""A racer's run once more, from scratch, to look at what its optimiser did in any step.

A run is determined by its config, so nothing of it need be kept for that. The engine from scratch
follows torch's up to rounding.
"""

import inspect
import textwrap
from dataclasses import replace
from math import inf
from time import perf_counter

from labcore.datasets.table import Table
from labcore.events import WeightsUpdated
from labcore.optimizers import Optimizer
from labcore.regression import RegressionConfig, train_regression


class Retrace:
    """A run, repeated as far as it is asked for.

    Args:
        run: whose steps to look into; its engine may be any.
        data: on which it was trained; the airfoil data if left out.

    Attributes:
        run: as given.
        data: as given.
        latest: the last repeated step, None before the first.
    """

    def __init__(self, run: RegressionConfig, data: Table | None = None) -> None:
        self.run = run
        self.data = data
        self.latest: WeightsUpdated | None = None
        self._begin()

    def _begin(self) -> None:
        scratch = replace(self.run, engine="from scratch")
        self._events = train_regression(scratch, self.data, updates=True)

    def go_to(self, step: int, seconds: float = inf) -> bool:
        """Make `latest` what happened in `step`, from 1, or in the run's last one before it.

        Args:
            step: updates that the run had done.
            seconds: how long this may take.

        Returns:
            Whether it is; False if the time ran out, so that another call has to go on.
        """
        if self.latest is not None and self.latest.step > step:
            self.latest = None
            self._begin()
        until = perf_counter() + seconds
        while self.latest is None or self.latest.step < step:
            if perf_counter() > until:
                return False
            found = next((e for e in self._events if isinstance(e, WeightsUpdated)), None)
            if found is None:
                return True
            self.latest = found
        return True


def optimizer_at(run: RegressionConfig, step: int) -> Optimizer:
    """Who took the run's `step`, counted from 1: before a fork another optimiser than after it."""
    stages = (stage.optimizer for stage in run.before if step <= stage.until)
    return next(stages, run.optimizer)


def rule_code(optimizer: type[Optimizer]) -> str:
    """The source of an optimiser's update rule, and of the one that it calls, if it extends one."""
    texts = []
    for kind in optimizer.__mro__:
        if "update" not in vars(kind):
            continue
        text = textwrap.dedent(inspect.getsource(vars(kind)["update"]))
        texts.append(f"# {kind.__name__}\n{text}")
        if "super()" not in text:
            break
    return "\n".join(texts)
