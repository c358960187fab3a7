"""NASA airfoil self-noise: wind-tunnel measurements for linear regression.

1,503 rows: frequency [Hz], angle of attack [deg], chord length [m], free-stream velocity [m/s],
suction-side displacement thickness [m], and the label, scaled sound pressure level [dB].

Source: T. Brooks, D. Pope and M. Marcolini, "Airfoil self-noise and prediction", NASA RP-1218,
1989; UCI Machine Learning Repository, CC BY 4.0. The file is the original, byte for byte.
"""

import hashlib
import io
from functools import cache
from pathlib import Path

import numpy as np
import torch

from labcore.datasets.errors import DataError
from labcore.datasets.table import Table

FILE = Path(__file__).parent / "files" / "airfoil_self_noise.dat"
SHA1 = "76e5be1548fd8222e5074cf0faae75edff8cf93f"
FEATURES = ("frequency", "angle of attack", "chord length", "velocity", "displacement thickness")
LABEL = "sound pressure level"
ROWS = 1_500
"""Rows used for training, of the 1,503 in the file."""


@cache
def load(file: Path = FILE) -> Table:
    """The embedded data, verified: standardised over all 1,503 rows, the first 1,500 kept.

    Each column is brought to mean 0 and population standard deviation 1. Read once per process.

    Raises:
        DataError: the file is missing, or its SHA-1 is not that of the original.
    """
    table = np.loadtxt(io.BytesIO(_verified_bytes(file)), delimiter="\t")
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    rows = torch.from_numpy(table[:ROWS])
    features, labels = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    return Table("airfoil self-noise", features, labels, FEATURES, LABEL)


def _verified_bytes(file: Path) -> bytes:
    remedy = f"Restore it with `git checkout -- {file.name}` in its folder, or clone the lab again."
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"The data file {file} cannot be read ({error.strerror}). {remedy}"
        ) from error
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if found != SHA1:
        raise DataError(
            f"The data file {file} is damaged: expected SHA-1 {SHA1}, found {found} "
            f"({len(content):,} bytes). {remedy}"
        )
    return content
