"""A class's own CSV file, read strictly into the structure that the embedded data have.

Accepted are numbers with a decimal point, separated by commas, semicolons or tabs, or with a
decimal comma, separated by semicolons or tabs; with or without a line of names at the top.
"""

import csv
import io
import math

import numpy as np
import torch

from labcore.config import refusal
from labcore.datasets.errors import DataError
from labcore.datasets.table import Table

LARGEST_FILE = 5 * 2**20
"""Bytes."""
FEWEST_ROWS = 10
MOST_FEATURES = 50
LONGEST_NAME = 40
CONSTANT = 1e-10
"""A column is constant if its standard deviation is below this share of its largest value."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
"""How files write that a value is missing, in lower case."""
SHOWN = 30
"""Characters of a refused cell that an error repeats."""


class Sheet:
    """The columns of a file, all of them usable; which one is the label is chosen later.

    Attributes:
        title: the file's name.
        names: of the columns. A name is what the file says, even where a spreadsheet would take it
            for a formula; exports defuse it.
        values: float64 (rows, columns), as in the file.
    """

    def __init__(self, title: str, names: tuple[str, ...], values: np.ndarray) -> None:
        self.title = title
        self.names = names
        self.values = values

    def table(self, label: str) -> Table:
        """The data with column `label` to predict and all others to predict it from.

        Each column is brought to mean 0 and population standard deviation 1; all rows are kept.

        Raises:
            ConfigError: no column has that name.
        """
        if label not in self.names:
            shown = ", ".join(name[:LONGEST_NAME] for name in self.names[:10])
            raise refusal("own data: label", label, f"a column: {shown}", self.names[-1])
        place = self.names.index(label)
        scaled = (self.values - self.values.mean(axis=0)) / self.values.std(axis=0)
        table = torch.from_numpy(scaled)
        others = [i for i in range(len(self.names)) if i != place]
        names = tuple(self.names[i] for i in others)
        features, labels = table[:, others].contiguous(), table[:, place].contiguous()
        return Table(self.title, features, labels, names, label)


def read_csv(content: bytes, title: str = "own data") -> Sheet:
    """Read an uploaded file.

    Args:
        content: the file's bytes, at most 5 MB.
        title: the file's name, for messages and charts.

    Raises:
        DataError: what the file has that cannot be used, where, and what to do.
    """
    if len(content) > LARGEST_FILE:
        raise DataError(
            f"{title} has {len(content):,} bytes; at most {LARGEST_FILE:,} (5 MB) can be read. "
            "Keep fewer rows or columns."
        )
    text = _decoded(content, title)
    lines = text.splitlines()
    if not any(line.strip() for line in lines):
        raise DataError(
            f"{title} is empty. Choose a file with a line of names and rows of numbers."
        )
    delimiter = _delimiter(next(line for line in lines if line.strip()))
    try:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise DataError(
            f"{title} is no CSV file: {error}. Save it again as CSV (UTF-8)."
        ) from error
    _check_width(len(rows[0][1]), title)
    comma = delimiter != "," and any(_has_comma(cell) for _, row in rows[1:] for cell in row)
    names, rows = _names(rows, comma, title)
    if len(rows) < FEWEST_ROWS:
        raise DataError(
            f"{title} has {len(rows)} rows of values; at least {FEWEST_ROWS} are needed. Add rows."
        )
    values = np.empty((len(rows), len(names)))
    for place, (line, row) in enumerate(rows):
        if len(row) != len(names):
            raise DataError(
                f"Line {line} of {title} has {len(row)} cells, the first line {len(names)}. Every "
                "line needs the same number; a decimal comma needs ; between the cells."
            )
        values[place] = [
            _value(cell, name, line, comma, title) for cell, name in zip(row, names, strict=True)
        ]
    _check_columns(names, values, title)
    return Sheet(title, names, values)


def _decoded(content: bytes, title: str) -> str:
    """UTF-8, or what spreadsheets on Windows write."""
    if b"\0" in content:
        raise DataError(f"{title} is no text file. Save the sheet as CSV (UTF-8).")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _delimiter(line: str) -> str:
    """The most frequent of the three; a semicolon or tab wins over decimal commas."""
    counts = {each: line.count(each) for each in ("\t", ";")}
    best = max(counts, key=lambda each: counts[each])
    return best if counts[best] else ","


Row = tuple[int, list[str]]
"""A row's cells with the number of its line."""


def _names(rows: list[Row], comma: bool, title: str) -> tuple[tuple[str, ...], list[Row]]:
    """The columns' names, and the rows below them; a file that begins with numbers has no names."""
    _, first = rows[0]
    if all(_number(cell, comma) is not None for cell in first):
        return tuple(f"column {i}" for i in range(1, len(first) + 1)), rows
    names = []
    for place, cell in enumerate(first, start=1):
        printable = "".join(c for c in cell if c.isprintable() or c.isspace())
        names.append(" ".join(printable.split())[:LONGEST_NAME] or f"column {place}")
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f"{title} has {names.count(name)} columns called {name!r}. Give each column a name "
                f"of its own, of at most {LONGEST_NAME} characters."
            )
    return tuple(names), rows[1:]


def _check_width(columns: int, title: str) -> None:
    if columns < 2:
        raise DataError(
            f"{title} has one column; at least two are needed, one of them to predict. Separate "
            "cells by commas, semicolons or tabs."
        )
    if columns - 1 > MOST_FEATURES:
        raise DataError(
            f"{title} has {columns:,} columns; at most {MOST_FEATURES + 1} can be used, "
            f"{MOST_FEATURES} features and the label. Remove some."
        )


def _has_comma(cell: str) -> bool:
    """Whether a cell is a number with a decimal comma."""
    return "," in cell and _number(cell, comma=True) is not None


def _number(cell: str, comma: bool) -> float | None:
    """The number that a cell spells, None if it spells none; not finite for "inf"."""
    cell = cell.strip()
    if (comma and "." in cell) or "_" in cell:
        return None
    try:
        return float(cell.replace(",", ".") if comma else cell)
    except ValueError:
        return None


def _value(cell: str, name: str, line: int, comma: bool, title: str) -> float:
    where = f"Column {name!r} of {title}, line {line}"
    if cell.strip().lower() in MISSING:
        raise DataError(f"{where}, has a missing value. Fill it in, or remove the row or column.")
    value = _number(cell, comma)
    if value is not None and math.isfinite(value):
        return value
    shown = cell if len(cell) <= SHOWN else cell[: SHOWN - 1] + "…"
    if comma and "." in cell:
        advice = "Write every number with a decimal comma and no thousands separator."
    elif not comma and "," in cell:
        advice = "For decimal commas put ; between the cells; leave out thousands separators."
    else:
        advice = "Columns must be numbers: remove this one, or code its values as numbers."
    raise DataError(f"{where}, has {shown!r}, which is no number. {advice}")


def _check_columns(names: tuple[str, ...], values: np.ndarray, title: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        spreads = values.std(axis=0)
    for name, spread, largest in zip(names, spreads, np.abs(values).max(axis=0), strict=True):
        if not math.isfinite(spread):
            raise DataError(
                f"Column {name!r} of {title} has values up to {largest:g}, too large to be scaled. "
                "Express it in a larger unit."
            )
        if spread <= CONSTANT * largest:
            raise DataError(
                f"Column {name!r} of {title} is constant, so it explains nothing. Remove it."
            )
