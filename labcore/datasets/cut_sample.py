"""Cuts the embedded sample from the full set: the first 600 and 100 images of each class.

    python -m labcore.datasets.cut_sample [FOLDER OF THE FULL SET [FOLDER FOR THE SAMPLE]]

Order and format are those of the original. Debian's package dataset-fashion-mnist provides the full
set. The four files are the same bytes whenever they are cut by the same version of zlib.
"""

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import torch
from torch import Tensor

from labcore.datasets.fashion_mnist import DEBIAN, EMBEDDED, ROLES, first_of_each_class, read

TRAIN, TEST = 6_000, 1_000


def sample(full: list[Tensor]) -> list[Tensor]:
    """The sample's images and labels, of the full ones; both in the order of `ROLES`, uint8."""
    train_images, train_labels, test_images, test_labels = full
    train = first_of_each_class(train_labels.long(), TRAIN)
    test = first_of_each_class(test_labels.long(), TEST)
    return [train_images[train], train_labels[train], test_images[test], test_labels[test]]


def to_idx(values: Tensor) -> bytes:
    """An IDX file of unsigned bytes, uncompressed.

    Args:
        values: uint8, of any shape with at least one dimension.
    """
    header = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    return header + values.to(torch.uint8).numpy().tobytes()


def cut(source: Path, target: Path) -> None:
    """Write the sample's four files, gzipped, and print their names, sizes and checksums.

    Raises:
        DataError: the full set is incomplete or damaged.
    """
    tensors, _ = read(source)
    target.mkdir(parents=True, exist_ok=True)
    for name, values in zip(ROLES, sample(tensors), strict=True):
        content = to_idx(values)
        packed = gzip.compress(content, compresslevel=9, mtime=0)
        (target / f"{name}.gz").write_bytes(packed)
        print(f"{name}.gz  {len(packed):>9,} bytes  SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    source, target, *_ = [*map(Path, sys.argv[1:]), *[DEBIAN, EMBEDDED][len(sys.argv) - 1 :]]
    cut(source, target)
