"""A table of numbers to regress one column on the others: how runs take their data."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from labcore.least_squares import LeastSquares, solve


@dataclass(frozen=True, eq=False)
class Table:
    """Standardised data, float64; treat them as read-only, all runs share them.

    Attributes:
        title: what the data are called.
        features: (n, d), the columns to regress on.
        labels: (n,), the column to predict.
        feature_names: of the d columns. Those of an own file are what its header says, so whoever
            shows them as Markdown or HTML has to escape them.
        label_name: of the label.
    """

    title: str
    features: Tensor
    labels: Tensor
    feature_names: tuple[str, ...]
    label_name: str

    @cached_property
    def exact(self) -> LeastSquares:
        """The closed-form truth about a linear model on these data, computed once."""
        return solve(self.features, self.labels)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Of a linear model's weights: the features', and "bias" at the end."""
        return (*self.feature_names, "bias")
