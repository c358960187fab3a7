"""Fashion-MNIST: where it is looked for, what is loaded, and what happens when it is damaged."""

import gzip
import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from labcore.datasets import fashion_mnist
from labcore.datasets.cut_sample import cut
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import (
    CLASSES,
    DEBIAN,
    EMBEDDED,
    FULL,
    KNOWN,
    ROLES,
    SAMPLE,
    FashionMNIST,
    first_of_each_class,
    load,
)

# Only a machine without the package is excused: with it, a missing file is a failure.
on_the_full_set = pytest.mark.skipif(
    not DEBIAN.exists(), reason="the full set (dataset-fashion-mnist) is not on this machine"
)
every_file = pytest.mark.parametrize("name", ROLES)
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = ROLES


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the sample that a test may damage."""
    return Path(shutil.copytree(EMBEDDED, tmp_path / "my images"))


@pytest.fixture
def embedded() -> FashionMNIST:
    return load(EMBEDDED)


def packed(folder: Path, name: str) -> Path:
    return folder / f"{name}.gz"


def content(name: str, folder: Path = EMBEDDED) -> bytes:
    return gzip.decompress(packed(folder, name).read_bytes())


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(folder)
    return str(caught.value)


# The embedded sample


def test_the_sample_has_6000_and_1000_images(embedded: FashionMNIST) -> None:
    assert embedded.train_images.shape == (6000, 28, 28)
    assert embedded.test_images.shape == (1000, 28, 28)


def test_the_sample_has_600_and_100_images_of_each_class(embedded: FashionMNIST) -> None:
    assert embedded.train_labels.bincount().tolist() == [600] * 10
    assert embedded.test_labels.bincount().tolist() == [100] * 10


def test_images_are_unsigned_bytes(embedded: FashionMNIST) -> None:
    assert embedded.train_images.dtype == embedded.test_images.dtype == torch.uint8


def test_labels_are_what_cross_entropy_takes(embedded: FashionMNIST) -> None:
    assert embedded.train_labels.dtype == embedded.test_labels.dtype == torch.int64


def test_the_source_is_said_in_words(embedded: FashionMNIST) -> None:
    assert embedded.source == f"the folder you named (6,000 + 1,000 images, in {EMBEDDED})"


def test_there_are_ten_classes() -> None:
    assert (len(CLASSES), CLASSES[0], CLASSES[9]) == (10, "T-shirt/top", "Ankle boot")


@every_file
def test_the_sample_is_small_and_gzipped(name: str) -> None:
    assert packed(EMBEDDED, name).stat().st_size < 2_700_000


@every_file
def test_the_sample_has_no_time_stamp(name: str) -> None:
    assert packed(EMBEDDED, name).read_bytes()[4:8] == bytes(4)


def test_the_licence_lies_beside_the_sample() -> None:
    text = (EMBEDDED / "LICENSE").read_text()
    assert "Copyright © 2017 Zalando SE" in text
    assert "The above copyright notice and this permission notice shall be included" in text


@on_the_full_set
def test_the_licence_is_that_of_the_package() -> None:
    theirs = Path("/usr/share/doc/dataset-fashion-mnist/copyright").read_text()
    theirs = " ".join(
        theirs.partition("License: Expat\n Permission")[2].replace(" .\n", "").split()
    )
    ours = " ".join((EMBEDDED / "LICENSE").read_text().partition("Permission")[2].split())
    assert ours == theirs


@on_the_full_set
@every_file
def test_the_sample_is_the_first_of_each_class_of_the_full_set(name: str) -> None:
    # Without our code: IDX files are their headers, then rows of equal size.
    group, size = name.split("-")[0], 784 if "images" in name else 1
    labels = content(f"{group}-labels-idx1-ubyte", DEBIAN)[8:]
    each, start = (600 if group == "train" else 100), (16 if size == 784 else 8)
    seen, rows, full = dict.fromkeys(range(10), 0), [], content(name, DEBIAN)[start:]
    for row, label in enumerate(labels):
        seen[label] += 1
        if seen[label] <= each:
            rows.append(full[row * size : (row + 1) * size])
    assert content(name)[start:] == b"".join(rows)


@on_the_full_set
def test_the_sample_can_be_cut_again(tmp_path: Path) -> None:
    cut(DEBIAN, tmp_path / "sample")
    again = [content(name, tmp_path / "sample") for name in ROLES]
    assert again == [content(name) for name in ROLES]


# The full set


@on_the_full_set
def test_the_full_set_has_60000_and_10000_images() -> None:
    data = load(DEBIAN)
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)


@on_the_full_set
def test_the_full_set_has_6000_and_1000_images_of_each_class() -> None:
    data = load(DEBIAN)
    assert data.train_labels.bincount().tolist() == [6_000] * 10
    assert data.test_labels.bincount().tolist() == [1_000] * 10


@on_the_full_set
def test_the_full_set_is_what_torchvision_reads(tmp_path: Path) -> None:
    from torchvision.datasets import FashionMNIST as Twin

    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ROLES:
        (raw / name).write_bytes(content(name, DEBIAN))
    data, train, test = load(tmp_path), Twin(tmp_path, train=True), Twin(tmp_path, train=False)
    assert torch.equal(data.train_images, train.data)
    assert torch.equal(data.train_labels, train.targets)
    assert torch.equal(data.test_images, test.data)
    assert torch.equal(data.test_labels, test.targets)
    assert list(CLASSES) == train.classes


@on_the_full_set
def test_the_full_set_is_what_torchvision_downloads() -> None:
    from torchvision.datasets import FashionMNIST as Twin

    # Debian has the same compressed data, without the original's name and time in the gzip header.
    times = {"train": 1_504_176_606, "t10k": 1_504_176_627}
    md5 = {}
    for name in ROLES:
        stamp = times[name.split("-")[0]].to_bytes(4, "little")
        original = b"\x1f\x8b\x08\x08" + stamp + b"\0\x03" + name.encode() + b"\0"
        original += packed(DEBIAN, name).read_bytes()[10:]
        md5[f"{name}.gz"] = hashlib.md5(original, usedforsecurity=False).hexdigest()
    assert md5 == dict(Twin.resources)


# Where it is looked for


def test_the_search_goes_from_cache_to_package_to_sample(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "FashionMNIST" / "raw"
    assert [place.folder for place in fashion_mnist.places()] == [cache, DEBIAN, EMBEDDED]


def test_without_any_other_place_the_sample_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "nothing")
    assert load().source == f"the embedded sample (6,000 + 1,000 images, in {EMBEDDED})"


@on_the_full_set
def test_the_package_comes_before_the_sample() -> None:
    assert load().source == (
        f"Debian's package dataset-fashion-mnist (60,000 + 10,000 images, in {DEBIAN})"
    )


def test_the_cache_comes_before_the_package(tmp_path: Path) -> None:
    raw = tmp_path / "cache" / "FashionMNIST" / "raw"
    shutil.copytree(EMBEDDED, raw)
    assert load().source == f"the lab's cache folder (6,000 + 1,000 images, in {raw})"


def test_the_environment_names_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATA_DIR", str(folder))
    assert str(folder) in load().source


def test_an_argument_comes_before_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DATA_DIR", str(folder))
    assert str(EMBEDDED) in load(EMBEDDED).source


def test_an_empty_name_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATA_DIR", "")
    assert len(fashion_mnist.places("")) == 3


def test_a_tilde_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert str(folder) in load(f"~/{folder.name}").source


def test_a_relative_name_is_made_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert f"in {folder})" in load(".").source


def test_a_named_folder_may_be_a_root_of_torchvision(folder: Path, tmp_path: Path) -> None:
    raw = tmp_path / "root" / "FashionMNIST" / "raw"
    shutil.copytree(folder, raw)
    assert f"in {raw})" in load(tmp_path / "root").source


def test_a_named_folder_without_data_is_no_reason_to_look_elsewhere(tmp_path: Path) -> None:
    assert f"{tmp_path / TRAIN_IMAGES} is missing" in refusal(tmp_path)


def test_a_named_folder_that_is_not_there_is_a_data_error(tmp_path: Path) -> None:
    assert "is missing: expected Fashion-MNIST's training images" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("LAB_CACHE_DIR", "/srv/lab", "/srv/lab"),
        ("XDG_CACHE_HOME", "/var/tmp/me", "/var/tmp/me/optimizer-lab"),
        ("XDG_CACHE_HOME", "relative", "/home/me/.cache/optimizer-lab"),
        ("XDG_CACHE_HOME", "", "/home/me/.cache/optimizer-lab"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAB_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv(variable, value)
    assert fashion_mnist.cache_folder() == Path(expected)


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("darwin", "Library/Caches"), ("win32", "AppData/Local"), ("linux", ".cache")],
)
def test_the_cache_folder_follows_the_platform(
    platform: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAB_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr("sys.platform", platform)
    assert fashion_mnist.cache_folder() == Path("/home/me") / expected / "optimizer-lab"


# One copy for all


def test_a_second_call_returns_the_same_object() -> None:
    assert load(EMBEDDED) is load(EMBEDDED)


def test_threads_that_ask_at_once_share_one_copy(folder: Path) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(load(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each is found[0] for each in found] == [True] * 4


def test_a_repaired_folder_loads_without_a_restart(folder: Path) -> None:
    file = packed(folder, TEST_LABELS)
    intact = file.read_bytes()
    file.write_bytes(intact[:100])
    refusal(folder)
    file.write_bytes(intact)
    assert load(folder).test_labels.shape == (1000,)


# Plain and gzipped


@every_file
def test_a_plain_file_counts_as_much_as_a_gzipped_one(name: str, folder: Path) -> None:
    packed(folder, name).unlink()
    (folder / name).write_bytes(content(name))
    assert torch.equal(load(folder).train_images, load(EMBEDDED).train_images)


@every_file
def test_it_does_not_matter_how_a_file_was_compressed(name: str, folder: Path) -> None:
    packed(folder, name).write_bytes(gzip.compress(content(name), compresslevel=1))
    assert torch.equal(load(folder).test_images, load(EMBEDDED).test_images)


# Damages


def flip(data: bytes) -> bytes:
    """The same with its last value changed by one: the smallest damage there is."""
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: gzip.compress(data, 1)[:-1000],
    "half of it": lambda data: gzip.compress(data[: len(data) // 2], 1),
    "last value missing": lambda data: gzip.compress(data[:-1], 1),
    "plain, last value missing": lambda data: data[:-1],
    "a value too many": lambda data: data + b"\0",
    "one bit changed": lambda data: gzip.compress(flip(data), 1),
    "plain, one bit changed": flip,
    "header changed": lambda data: data[:7] + bytes([data[7] ^ 1]) + data[8:],
    "all zeros": lambda data: data[:16] + bytes(len(data) - 16),
    "empty": lambda data: b"",
    "a web page": lambda data: b"<!DOCTYPE html><title>404</title>",
}
every_damage = pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)


@every_damage
@every_file
def test_a_damaged_file_is_named(how: Callable[[bytes], bytes], name: str, folder: Path) -> None:
    packed(folder, name).write_bytes(how(content(name)))
    assert refusal(folder).startswith(f"The data file {packed(folder, name)} ")


@every_damage
def test_a_damage_is_told_with_expectation_finding_and_remedy(
    how: Callable[[bytes], bytes], folder: Path
) -> None:
    packed(folder, TEST_LABELS).write_bytes(how(content(TEST_LABELS)))
    message = refusal(folder)
    for part in [": expected ", ", found ", "Name a folder that holds", "--download"]:
        assert part in message


def test_a_changed_bit_is_told_with_the_checksums(folder: Path) -> None:
    changed = flip(content(TEST_LABELS))
    packed(folder, TEST_LABELS).write_bytes(changed)
    right = hashlib.sha256(content(TEST_LABELS)).hexdigest()
    found = hashlib.sha256(changed).hexdigest()
    assert f"{right} (of 6,000 + 1,000 images), found {found}" in refusal(folder)


@every_file
def test_a_missing_file_is_told_with_its_name(name: str, folder: Path) -> None:
    packed(folder, name).unlink()
    expected = f"{folder / name} is missing: expected Fashion-MNIST's {ROLES[name]} there"
    assert expected in refusal(folder)


SWAPS = [(one, other) for one in ROLES for other in ROLES if one != other]


@pytest.mark.parametrize(("name", "other"), SWAPS)
def test_a_swapped_file_is_told_with_what_it_is(name: str, other: str, folder: Path) -> None:
    shutil.copy(packed(EMBEDDED, other), packed(folder, name))
    expected = f"is swapped: expected Fashion-MNIST's {ROLES[name]}, found its {ROLES[other]}. "
    assert expected in refusal(folder)


@on_the_full_set
def test_files_of_two_sets_do_not_mix(folder: Path) -> None:
    shutil.copy(packed(DEBIAN, TEST_LABELS), folder)
    expected = f"another set: expected the one of {SAMPLE}, as {TRAIN_IMAGES}.gz has it, found"
    assert expected in refusal(folder)


def test_a_dangling_link_is_a_data_error(folder: Path) -> None:
    packed(folder, TEST_IMAGES).unlink()
    packed(folder, TEST_IMAGES).symlink_to(folder / "gone")
    assert "cannot be read (No such file or directory)" in refusal(folder)


def test_a_file_in_place_of_the_folder_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "is missing" in refusal(tmp_path / "file")


def test_a_damaged_cache_is_not_passed_over(tmp_path: Path) -> None:
    raw = tmp_path / "cache" / "FashionMNIST" / "raw"
    shutil.copytree(EMBEDDED, raw)
    packed(raw, TRAIN_LABELS).unlink()
    with pytest.raises(DataError, match="Repair it with `python -m labcore data --download`"):
        load()


def test_an_empty_cache_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cache" / "FashionMNIST" / "raw").mkdir(parents=True)
    assert "cache" not in load().source


@pytest.mark.parametrize("which", [FULL, SAMPLE])
def test_every_set_has_a_checksum_for_every_file(which: str) -> None:
    assert [role for known, role in KNOWN.values() if known == which] == list(ROLES.values())


# How many images


@pytest.mark.parametrize("count", [1, 9, 10, 64, 255, 1_000, 5_999, 6_000])
def test_a_choice_is_balanced_to_one_image(count: int, embedded: FashionMNIST) -> None:
    chosen = embedded.train_labels[embedded.train_rows(count)].bincount(minlength=10)
    assert chosen.sum() == count
    assert chosen.max() - chosen.min() <= 1


def test_a_choice_is_in_the_order_of_the_file(embedded: FashionMNIST) -> None:
    rows = embedded.train_rows(777)
    assert torch.equal(rows, rows.sort().values)


def test_a_larger_choice_contains_the_smaller(embedded: FashionMNIST) -> None:
    small, large = embedded.train_rows(777), embedded.train_rows(778)
    assert set(small.tolist()) < set(large.tolist())


def test_all_images_are_all_rows(embedded: FashionMNIST) -> None:
    assert torch.equal(embedded.train_rows(6_000), torch.arange(6_000))


def test_of_a_class_its_first_images_are_taken() -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 1, 2, 0])
    assert first_of_each_class(labels, 5).tolist() == [0, 1, 3, 4, 5]


@on_the_full_set
@pytest.mark.parametrize("count", [10, 999, 6_000])
def test_a_choice_of_the_full_set_is_that_of_the_sample(count: int, embedded: FashionMNIST) -> None:
    full = load(DEBIAN)
    ours = embedded.train_images[embedded.train_rows(count)]
    assert torch.equal(full.train_images[full.train_rows(count)], ours)


@on_the_full_set
def test_a_thousand_test_images_of_the_full_set_are_those_of_the_sample(
    embedded: FashionMNIST,
) -> None:
    full = load(DEBIAN)
    assert torch.equal(full.test_images[full.test_rows(1_000)], embedded.test_images)


@on_the_full_set
def test_59999_images_leave_one_out() -> None:
    assert len(load(DEBIAN).train_rows(59_999).unique()) == 59_999


@pytest.mark.parametrize("count", [0, -1, 6_001, 59_999])
def test_a_count_out_of_range_is_told_with_the_range(count: int, embedded: FashionMNIST) -> None:
    with pytest.raises(DataError, match=f"from 1 to 6,000; received {count:,}.*--download"):
        embedded.train_rows(count)


def test_a_count_of_test_images_has_its_own_range(embedded: FashionMNIST) -> None:
    with pytest.raises(DataError, match="of test images must be from 1 to 1,000; received 1,001"):
        embedded.test_rows(1_001)


@on_the_full_set
def test_who_has_all_images_is_not_told_to_download_them() -> None:
    with pytest.raises(DataError, match=r"Try 60,000\.$"):
        load(DEBIAN).train_rows(60_001)
