"""Fashion-MNIST: 28×28 grey images of clothes in ten classes, found on this machine and verified.

60,000 training and 10,000 test images, or the embedded sample of 6,000 and 1,000: the first 600
and 100 of each class. They are looked for in this order, and the first place that holds any of the
files is used:

1. the folder that the user names, as an argument or in LAB_DATA_DIR, and then no other;
2. the lab's cache folder, where a download puts it;
3. Debian's package dataset-fashion-mnist;
4. the embedded sample.

A place whose files are incomplete, damaged or foreign is an error and never passed over: a run on
a tenth of the images should not come as a surprise.

Source: H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking
machine learning algorithms", arXiv:1708.07747, 2017; MIT licence, © 2017 Zalando SE.
"""

import hashlib
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from labcore.datasets import idx
from labcore.datasets.errors import DataError

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
ROLES = {
    "train-images-idx3-ubyte": "training images",
    "train-labels-idx1-ubyte": "training labels",
    "t10k-images-idx3-ubyte": "test images",
    "t10k-labels-idx1-ubyte": "test labels",
}
"""File name without .gz → what the file holds, in the order of `FashionMNIST`'s fields."""
FULL = "60,000 + 10,000 images"
SAMPLE = "6,000 + 1,000 images"
KNOWN = {
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888": (FULL, "training images"),
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9": (FULL, "training labels"),
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b": (FULL, "test images"),
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34": (FULL, "test labels"),
    "cf313073c7eb485392848071d5c433571d7166043e971e3345b095cc30518084": (SAMPLE, "training images"),
    "097b93fbcf9bd5bc648b1a457ddc55c9e4ab49afb33f9ecae8ce068399a75e3a": (SAMPLE, "training labels"),
    "7cee33c3c6414b1b86c25e665a6c4f41584269de3b7cc9768b1d351922845eef": (SAMPLE, "test images"),
    "3128d790775889812b73c4f13923559c8b9e281d112c6ea7862acf60a206a909": (SAMPLE, "test labels"),
}
"""SHA-256 of a file's uncompressed content → the set to which it belongs, and what it holds."""

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
EMBEDDED = Path(__file__).parent / "files" / "fashion_mnist"
TORCHVISION = Path("FashionMNIST") / "raw"
"""Where torchvision keeps the files, below the folder that it is given as root."""


@dataclass(frozen=True)
class FashionMNIST:
    """The images as they are in the files; treat them as read-only, all runs share them.

    Attributes:
        train_images: uint8 (n, 28, 28), 0 is background; n = 60,000, or 6,000 in the sample.
        train_labels: int64 (n,), 0…9, the index in `CLASSES`; int64 as cross-entropy wants it.
        test_images: uint8 (m, 28, 28); m = 10,000, or 1,000 in the sample.
        test_labels: int64 (m,).
        source: where they came from, in words.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str

    def train_rows(self, count: int) -> Tensor:
        """Which training images a run of `count` images takes; see `first_of_each_class`."""
        return self._rows(self.train_labels, count, "training")

    def test_rows(self, count: int) -> Tensor:
        """Which test images an evaluation on `count` images takes; see `first_of_each_class`."""
        return self._rows(self.test_labels, count, "test")

    def _rows(self, labels: Tensor, count: int, kind: str) -> Tensor:
        if not 1 <= count <= len(labels):
            raise DataError(
                f"The number of {kind} images must be from 1 to {len(labels):,}; received "
                f"{count:,}. These are all that {self.source} has. Try {len(labels):,}"
                + (f", or get all 70,000: {GET_ALL}." if SAMPLE in self.source else ".")
            )
        return first_of_each_class(labels, count)


GET_ALL = "`python -m labcore data --download`, or on Debian `apt install dataset-fashion-mnist`"


def first_of_each_class(labels: Tensor, count: int) -> Tensor:
    """The rows of the first count/10 images of each class, in the order of the file.

    So a choice is balanced to within one image per class, a larger one contains every smaller one,
    all images are all rows, and 6,000 of the full set are exactly the embedded sample: a run on up
    to 6,000 images gives the same numbers on a machine that has only that.

    Args:
        labels: int64 (n,).
        count: from 1 to n.

    Returns:
        int64 (count,), increasing. Rows, not images: the images stay in memory once.
    """
    seen = torch.nn.functional.one_hot(labels).cumsum(dim=0)
    rank = seen.gather(1, labels.unsqueeze(1)).squeeze(1)
    return rank.argsort(stable=True)[:count].sort().values


@dataclass(frozen=True)
class Place:
    """A folder in which the files may be.

    Attributes:
        origin: what the folder is, in words.
        folder: the folder of the four files themselves.
        remedy: what to do when they are incomplete or damaged.
    """

    origin: str
    folder: Path
    remedy: str

    def holds_any(self) -> bool:
        """Whether any of the files is there, right or wrong."""
        return any(_variants(self.folder, name) for name in ROLES)


def places(folder: str | Path = "") -> list[Place]:
    """Where to look, in this order: the named folder alone, or all others when none is named.

    Args:
        folder: what the user names; if empty, LAB_DATA_DIR. It may hold the files themselves, or be
            a root in torchvision's sense, with the files in FashionMNIST/raw.
    """
    if named := named_folder(folder):
        below = named / TORCHVISION
        found = below if any(_variants(below, name) for name in ROLES) else named
        remedy = (
            "Name a folder that holds Fashion-MNIST's four files, plain or gzipped (--data-dir, "
            "LAB_DATA_DIR), or none; `python -m labcore data --download` fetches them into the "
            "folder that is named."
        )
        return [Place("the folder you named", found, remedy)]
    return [
        Place(
            "the lab's cache folder",
            cache_folder() / TORCHVISION,
            "Repair it with `python -m labcore data --download`, or delete the folder.",
        ),
        Place(
            "Debian's package dataset-fashion-mnist",
            DEBIAN,
            "Repair it with `apt install --reinstall dataset-fashion-mnist`, or remove it.",
        ),
        Place(
            "the embedded sample",
            EMBEDDED,
            "Restore it with `git checkout -- .` in that folder, or clone the lab again.",
        ),
    ]


def named_folder(folder: str | Path = "") -> Path | None:
    """The folder that the user names, or else LAB_DATA_DIR; None where neither is given."""
    name = str(folder) or os.environ.get("LAB_DATA_DIR", "")
    return Path(os.path.abspath(os.path.expanduser(name))) if name else None


def cache_folder() -> Path:
    """This user's folder for the lab's downloads: LAB_CACHE_DIR, or as the platform has it."""
    if own := os.environ.get("LAB_CACHE_DIR"):
        return Path(os.path.abspath(os.path.expanduser(own)))
    home = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}.get(sys.platform, "~/.cache")
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification asks to ignore a relative path.
    return Path(base if os.path.isabs(base) else os.path.expanduser(home)) / "optimizer-lab"


def load(folder: str | Path = "") -> FashionMNIST:
    """The images from the first place that has any, verified by SHA-256. Read once per place.

    Args:
        folder: see `places`.

    Raises:
        DataError: a file there is missing, truncated, swapped, foreign or otherwise damaged; it
            names the file, what was expected and found, and what to do.
    """
    return load_from(place_to_use(places(folder)))


def place_to_use(candidates: list[Place]) -> Place:
    """The first place that holds any of the files; the last one where none does."""
    return next((place for place in candidates if place.holds_any()), candidates[-1])


def load_from(place: Place) -> FashionMNIST:
    """The images of this place; otherwise as `load`."""
    # One thread reads; those that ask meanwhile wait, and share what it read.
    with _reading:
        return _load(place)


_reading = Lock()


@cache
def _load(place: Place) -> FashionMNIST:
    try:
        images, which = read(place.folder)
    except DataError as problem:
        raise DataError(f"{problem} {place.remedy}") from problem
    train_images, train_labels, test_images, test_labels = images
    return FashionMNIST(
        train_images,
        train_labels.long(),
        test_images,
        test_labels.long(),
        f"{place.origin} ({which}, in {place.folder})",
    )


def read(folder: Path) -> tuple[list[Tensor], str]:
    """The content of the four files in the order of `ROLES`, uint8, and the set: FULL or SAMPLE.

    Raises:
        DataError: as `load`, but without the remedy, which is the caller's to know.
    """
    tensors, sets = [], {}
    for name, role in ROLES.items():
        file = next(iter(_variants(folder, name)), None)
        if file is None:
            raise DataError(
                f"The data file {folder / name} is missing: expected Fashion-MNIST's {role} there, "
                f"or gzipped as {name}.gz."
            )
        tensor, sets[file] = _read_one(file, role)
        tensors.append(tensor)
    (first, expected), *others = sets.items()
    for file, found in others:
        if found != expected:
            raise DataError(
                f"The data file {file} belongs to another set: expected the one of {expected}, as "
                f"{first.name} has it, found the one of {found}."
            )
    return tensors, expected


def _variants(folder: Path, name: str) -> list[Path]:
    """What there is of a file: the plain one first, which needs no unpacking."""
    # os.path, since a Path raises where a folder may not be entered.
    return [each for each in (folder / name, folder / f"{name}.gz") if os.path.lexists(each)]


def _read_one(file: Path, role: str) -> tuple[Tensor, str]:
    content = idx.read_bytes(file)
    checksum = hashlib.sha256(content).hexdigest()
    which, found = KNOWN.get(checksum, ("", ""))
    if found and found != role:
        raise DataError(
            f"The data file {file} is swapped: expected Fashion-MNIST's {role}, found its {found}."
        )
    tensor = idx.parse(content, file)
    if not found:
        expected = " or ".join(
            f"{each} (of {known})" for each, (known, held) in KNOWN.items() if held == role
        )
        raise DataError(
            f"The data file {file} is not Fashion-MNIST's {role}, or damaged: expected SHA-256 "
            f"{expected}, found {checksum} ({idx.in_words(tuple(tensor.shape))} values)."
        )
    return tensor, which
