"""The IDX parser: what it reads, and every way in which it refuses."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from labcore.datasets import idx
from labcore.datasets.errors import DataError

VALUES = bytes(range(24))
CONTENT = bytes([0, 0, 8, 3]) + struct.pack(">III", 2, 3, 4) + VALUES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some-idx3-ubyte"


def test_values_have_the_shape_of_the_header(file: Path) -> None:
    expected = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    assert torch.equal(idx.parse(CONTENT, file), expected)


def test_values_are_unsigned_bytes(file: Path) -> None:
    assert idx.parse(CONTENT, file).dtype == torch.uint8


def test_labels_have_one_dimension(file: Path) -> None:
    content = bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + bytes([9, 0, 5])
    assert idx.parse(content, file).tolist() == [9, 0, 5]


REFUSED = {
    "empty": (b"", "expected it to begin with 00 00 08 .* found nothing"),
    "three bytes": (CONTENT[:3], "begin with 00 00 08"),
    "within the header": (CONTENT[:10], "begin with 00 00 08"),
    "a web page": (b"<!DOCTYPE html>", "found 3c 21 44 4f"),
    "signed bytes": (CONTENT[:2] + b"\x09" + CONTENT[3:], "found 00 00 09 03"),
    "no dimensions": (b"\0\0\x08\0", "found 00 00 08 00"),
    "last byte missing": (CONTENT[:-1], "truncated: expected the 2 × 3 × 4 = 24 .* found 23"),
    "header only": (CONTENT[:16], "truncated: expected .* found 0"),
    "a byte too many": (CONTENT + b"\0", "damaged: expected the 2 × 3 × 4 = 24 .* found 25"),
    "a huge promise": (
        CONTENT[:4] + b"\xff" * 12 + VALUES,
        "expected the 4,294,967,295 × 4,294,967,295 × 4,294,967,295",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_says_what_was_expected_and_found(
    content: bytes, message: str, file: Path
) -> None:
    with pytest.raises(DataError, match=message):
        idx.parse(content, file)


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_file(content: bytes, message: str, file: Path) -> None:
    with pytest.raises(DataError) as caught:
        idx.parse(content, file)
    assert str(file) in str(caught.value)


def test_a_plain_file_is_read_as_it_is(file: Path) -> None:
    file.write_bytes(CONTENT)
    assert idx.read_bytes(file) == CONTENT


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_gzipped_file_is_unpacked_whatever_its_name(suffix: str, file: Path) -> None:
    named = file.with_name(file.name + suffix)
    named.write_bytes(gzip.compress(CONTENT))
    assert idx.read_bytes(named) == CONTENT


PACKED = gzip.compress(CONTENT, mtime=0)
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in half": (lambda packed: packed[: len(packed) // 2], "truncated: .* in the middle"),
    "cut in its header": (lambda packed: packed[:5], "truncated: expected a whole gzip file"),
    "checksum missing": (lambda packed: packed[:-8], "truncated: expected a whole gzip file"),
    "wrong checksum": (lambda packed: packed[:-8] + b"\1" * 8, "damaged: .* incorrect data check"),
    "flipped bits": (lambda packed: packed[:12] + b"\xff" * 9 + packed[21:], "damaged: expected"),
    "something after it": (lambda packed: packed + b"\0" * 7, "found 7 more bytes after its end"),
    "twice": (lambda packed: packed * 2, "more bytes after its end"),
}


@pytest.mark.parametrize(("how", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_gzip_file_is_refused(
    how: Callable[[bytes], bytes], message: str, file: Path
) -> None:
    file.write_bytes(how(PACKED))
    with pytest.raises(DataError, match=message):
        idx.read_bytes(file)


def test_a_missing_file_is_a_data_error(file: Path) -> None:
    with pytest.raises(DataError, match=rf"{file} cannot be read \(No such file or directory\)"):
        idx.read_bytes(file)


def test_a_folder_in_place_of_the_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Is a directory"):
        idx.read_bytes(tmp_path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_a_file_larger_than_any_of_the_family_is_refused(
    pack: Callable[[bytes], bytes], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "LARGEST", 1_000)
    file.write_bytes(pack(bytes(1_001)))
    with pytest.raises(DataError, match="expected at most 1,000 bytes, found more"):
        idx.read_bytes(file)
