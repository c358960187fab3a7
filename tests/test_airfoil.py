"""The airfoil data: the original file, its preparation, and what happens when it is damaged."""

import hashlib

import numpy as np
import pytest
import torch

from labcore.datasets import airfoil
from labcore.datasets.errors import DataError

ORIGINAL_SHA1 = "76e5be1548fd8222e5074cf0faae75edff8cf93f"


@pytest.fixture(scope="module")
def table():
    """All 1,503 rows of the file, read without our code."""
    lines = airfoil.FILE.read_text(encoding="ascii").split("\n")
    return np.array([[float(cell) for cell in line.split("\t")] for line in lines if line.strip()])


@pytest.fixture
def copy(tmp_path):
    """A copy of the file that a test may damage."""
    file = tmp_path / "airfoil_copy.dat"
    file.write_bytes(airfoil.FILE.read_bytes())
    return file


def damage(file, how):
    """Overwrite the file with what `how` makes of its bytes."""
    file.write_bytes(how(file.read_bytes()))


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "last byte missing": lambda content: content[:-1],
    "empty": lambda content: b"",
    "one digit changed": lambda content: content.replace(b"126.201", b"126.202", 1),
    "line ends changed": lambda content: content.replace(b"\r\n", b"\n"),
    "a row twice": lambda content: content + content.splitlines(keepends=True)[0],
    "a web page": lambda content: b"<!DOCTYPE html><title>404</title>",
}
every_damage = pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES.keys())


def test_file_is_the_original_byte_for_byte():
    content = airfoil.FILE.read_bytes()
    assert hashlib.sha1(content, usedforsecurity=False).hexdigest() == ORIGINAL_SHA1


def test_expected_checksum_is_that_of_the_original():
    assert airfoil.SHA1 == ORIGINAL_SHA1


def test_file_has_1503_rows_of_6_columns(table):
    assert table.shape == (1503, 6)


def test_shapes():
    data = airfoil.load()
    assert data.features.shape == (1500, 5)
    assert data.labels.shape == (1500,)


def test_rows_and_features_are_counted_right():
    assert (airfoil.ROWS, len(airfoil.FEATURES)) == (1500, 5)


def test_dtype_is_float64():
    data = airfoil.load()
    assert data.features.dtype == data.labels.dtype == torch.float64


def test_features_are_standardised_over_all_rows_of_the_file(table):
    expected = (table[:, :5] - np.mean(table[:, :5], axis=0)) / np.std(table[:, :5], axis=0, ddof=0)
    np.testing.assert_allclose(airfoil.load().features.numpy(), expected[:1500], rtol=0, atol=1e-12)


def test_labels_are_standardised_over_all_rows_of_the_file(table):
    expected = (table[:, 5] - np.mean(table[:, 5])) / np.std(table[:, 5], ddof=0)
    np.testing.assert_allclose(airfoil.load().labels.numpy(), expected[:1500], rtol=0, atol=1e-12)


def test_second_call_returns_the_same_object():
    assert airfoil.load() is airfoil.load()


def test_intact_copy_gives_the_same_numbers(copy):
    assert torch.equal(airfoil.load(copy).features, airfoil.load().features)


def test_file_is_read_once(copy):
    first = airfoil.load(copy)
    copy.unlink()
    assert airfoil.load(copy) is first


@every_damage
def test_damage_changes_the_file(how, copy):
    before = copy.read_bytes()
    damage(copy, how)
    assert copy.read_bytes() != before


@every_damage
def test_damaged_file_is_named_in_the_error(how, copy):
    damage(copy, how)
    with pytest.raises(DataError) as caught:
        airfoil.load(copy)
    assert str(copy) in str(caught.value)


@every_damage
def test_damaged_file_error_states_what_was_expected_and_found(how, copy):
    damage(copy, how)
    found = hashlib.sha1(copy.read_bytes(), usedforsecurity=False).hexdigest()
    with pytest.raises(DataError, match=f"expected SHA-1 {ORIGINAL_SHA1}, found {found}"):
        airfoil.load(copy)


@every_damage
def test_damaged_file_error_says_what_to_do(how, copy):
    damage(copy, how)
    with pytest.raises(DataError, match=f"Restore it with `git checkout -- {copy.name}`"):
        airfoil.load(copy)


def test_truncated_file_error_states_the_size(copy):
    damage(copy, lambda content: content[:12_345])
    with pytest.raises(DataError, match=r"12,345 bytes"):
        airfoil.load(copy)


def test_missing_file_error_names_it_and_says_what_to_do(tmp_path):
    file = tmp_path / "nosuchfile.dat"
    with pytest.raises(DataError) as caught:
        airfoil.load(file)
    assert str(file) in str(caught.value)
    assert "cannot be read (No such file or directory)" in str(caught.value)
    assert f"Restore it with `git checkout -- {file.name}`" in str(caught.value)


def test_folder_in_place_of_the_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        airfoil.load(tmp_path)


def test_repaired_file_loads_without_a_restart(copy):
    intact = copy.read_bytes()
    damage(copy, lambda content: content[:100])
    with pytest.raises(DataError):
        airfoil.load(copy)
    copy.write_bytes(intact)
    assert airfoil.load(copy).features.shape == (1500, 5)


def test_data_error_is_written_for_the_user():
    assert DataError("…").for_user is True
