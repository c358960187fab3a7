"""An own CSV file: what is accepted has the same exact picture, what is not is refused in words."""

import csv
import io

import numpy as np
import pytest
import torch

from labcore.config import ConfigError
from labcore.datasets import airfoil
from labcore.datasets.errors import DataError
from labcore.datasets.own import FEWEST_ROWS, LARGEST_FILE, MOST_FEATURES, read_csv
from labcore.events import Finished, RacerEvent
from labcore.exports import _table
from labcore.optimizers import SGD, Adam
from labcore.race import RaceConfig, RaceHistory, Racer, race
from labcore.regression import RegressionConfig, lr_limit, train_regression
from labcore.stack import descend
from labcore.surface import SurfaceView, axis_names, surface


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def values(rows: int = 40, columns: int = 3) -> np.ndarray:
    draws = np.random.default_rng(0).normal(size=(rows, columns)).round(4)
    draws[:, -1] += draws[:, 0]
    return draws


def text(cells: np.ndarray, names: str | None = "a,b,c", delimiter: str = ",") -> str:
    lines = [delimiter.join(f"{cell}" for cell in row) for row in cells]
    return "\n".join(([names] if names else []) + lines) + "\n"


def table(cells: np.ndarray | None = None):
    return read_csv(text(values() if cells is None else cells).encode()).table("c")


def standardised(cells: np.ndarray) -> np.ndarray:
    return (cells - cells.mean(axis=0)) / cells.std(axis=0)


def test_columns_are_standardised_and_the_label_apart():
    read = read_csv(text(values()).encode(), "mine.csv").table("b")
    expected = standardised(values())
    np.testing.assert_allclose(read.features, expected[:, [0, 2]], atol=1e-12)
    np.testing.assert_allclose(read.labels, expected[:, 1], atol=1e-12)
    assert (read.feature_names, read.label_name) == (("a", "c"), "b")
    assert read.title == "mine.csv"


@pytest.mark.parametrize(
    "content",
    [
        text(values()).encode("utf-8-sig"),
        text(values()).replace("\n", "\r\n").encode(),
        text(values()).replace("\n", "\n\n").encode(),
        text(values(), "a;b;c", ";").encode(),
        text(values(), "a;b;c", ";").replace(".", ",").encode(),
        text(values(), "a\tb\tc", "\t").replace(".", ",").encode(),
        text(values(), '"a"," b ",c').encode(),
    ],
    ids=["BOM", "CRLF", "blank lines", "semicolons", "decimal commas", "tabs", "quotes"],
)
def test_the_same_numbers_are_read_from_every_dialect(content):
    sheet = read_csv(content)
    assert sheet.names == ("a", "b", "c")
    np.testing.assert_array_equal(sheet.values, values())


def test_file_without_names_gets_numbered_columns():
    sheet = read_csv(text(values(), None).encode())
    assert sheet.names == ("column 1", "column 2", "column 3")
    assert len(sheet.values) == 40


def test_names_from_a_spreadsheet_on_windows_are_read():
    assert read_csv(text(values(), "Länge,b,c").encode("cp1252")).names[0] == "Länge"


def test_the_airfoil_file_itself_is_read_as_the_embedded_data():
    sheet = read_csv(airfoil.FILE.read_bytes())
    read = sheet.table("column 6")
    torch.testing.assert_close(read.features[: airfoil.ROWS], airfoil.load().features)
    torch.testing.assert_close(read.labels[: airfoil.ROWS], airfoil.load().labels)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (text(values(FEWEST_ROWS - 1)), "9 rows of values; at least 10"),
        (text(values(20, 1), "a"), "one column; at least two"),
        (text(values(20, MOST_FEATURES + 2), None), "has 52 columns; at most 51"),
        ("a,b\n" + "1,red\n2,blue\n" * 9, "Column 'b' of f.csv, line 2, has 'red'.*no number"),
        ("a,b\n" + "1,2\n3,\n" * 9, "Column 'b' of f.csv, line 3, has a missing value"),
        ("a,b\n" + "1,2\n3,NaN\n" * 9, "line 3, has a missing value"),
        ("a,b\n" + "1,2\n3,inf\n" * 9, "'inf', which is no number"),
        ("a,b\n" + "1,7\n3,7\n" * 9, "Column 'b' of f.csv is constant"),
        ("a,b\n" + "1,1e200\n3,-1e200\n" * 9, "too large to be scaled"),
        ("a,b\n" + '"1,5","2,5"\n' * 9 + "1,2\n" * 3, "put ; between the cells"),
        ("a;b\n" + "1.234,5;2,5\n" * 12, "no thousands separator"),
        ("a,b\n" + "1,2\n3,4,5\n" * 9, "Line 3 of f.csv has 3 cells, the first line 2"),
        ("a,a\n" + "1,2\n" * 12, "2 columns called 'a'"),
        ('a,b\n"1,2\n', "is no CSV file"),
        ("PK\3\4\0\0", "is no text file"),
        ("1,2\n" * (LARGEST_FILE // 4 + 1), "at most 5,242,880"),
    ],
    ids=lambda value: value[:20],
)
def test_what_cannot_be_used_is_refused_with_a_reason(content, words):
    with pytest.raises(DataError, match=words):
        read_csv(content.encode(), "f.csv")


def test_the_limits_themselves_are_accepted():
    assert len(read_csv(text(values(FEWEST_ROWS)).encode()).values) == FEWEST_ROWS
    sheet = read_csv(text(values(60, MOST_FEATURES + 1), None).encode())
    assert len(sheet.table("column 1").feature_names) == MOST_FEATURES


def test_label_must_be_a_column():
    with pytest.raises(ConfigError, match="label must be a column: a, b, c"):
        read_csv(text(values()).encode()).table("d")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-x", "@x", " =1"])
def test_formula_in_a_header_is_a_name_and_no_formula_in_an_export(name):
    sheet = read_csv(text(values(), f"{name},b,c").encode())
    assert sheet.names[0] == name.strip()
    exported = _table([{sheet.names[0]: 1.0, "b": 2.0}])
    [header, _] = csv.reader(io.StringIO(exported))
    assert header == [f"'{name.strip()}", "b"]


def test_run_on_own_data_has_its_own_exact_picture():
    data = table(values(300))
    inputs = np.column_stack([standardised(values(300))[:, :2], np.ones(300)])
    labels = standardised(values(300))[:, 2]
    solution = np.linalg.lstsq(inputs, labels, rcond=None)[0]
    least = np.mean((inputs @ solution - labels) ** 2) / 2
    config = RegressionConfig(optimizer=SGD(lr=0.1), batch_size=300, epochs=300)
    events = list(train_regression(config, data))
    assert events[0].floor == pytest.approx(least, rel=1e-10)
    assert events[0].lr_limit == pytest.approx(
        1 / np.linalg.eigvalsh(inputs.T @ inputs / 300)[-1], rel=1e-10
    )
    assert isinstance(events[-1], Finished)
    assert events[-1].loss == pytest.approx(least, abs=1e-6)


@pytest.mark.parametrize("engine", ["torch", "from scratch"])
@pytest.mark.parametrize("model", ["linear", "hidden"])
def test_race_runs_on_own_data(engine, model):
    data = table()
    config = RaceConfig(racers=(Racer(SGD()), Racer(Adam())), engine=engine, model=model, epochs=2)
    history = RaceHistory(config, data)
    for event in race(config, data, weights=True):
        history.add(event)
        if isinstance(event, RacerEvent) and isinstance(event.event, Finished):
            assert event.event.step == 2 * 4
    assert history.floor == (data.exact.floor if model == "linear" else None)
    assert history.rows == 40
    assert history.lanes["Adam"].path


def test_stacked_runs_end_as_single_runs_on_own_data():
    data = table()
    config = RegressionConfig(engine="from scratch", batch_size=7, epochs=2)
    *_, last = descend(config, [SGD(lr=0.01), SGD(lr=0.1)], [4], data)
    for setting, lr in enumerate((0.01, 0.1)):
        run = RegressionConfig(
            engine="from scratch", batch_size=7, epochs=2, seed=4, optimizer=SGD(lr=lr)
        )
        *_, end = train_regression(run, data)
        assert float(last.losses[-1, 0, setting]) == pytest.approx(end.loss, abs=1e-6)


def test_batch_larger_than_the_file_is_the_whole_file():
    data = table()
    *_, end = train_regression(RegressionConfig(batch_size=1500, epochs=3), data)
    *_, last = descend(RegressionConfig(batch_size=1500, epochs=3), [SGD()], [0], data)
    assert end.step == last.step == 3
    assert float(last.losses[-1, 0, 0]) == pytest.approx(end.loss, abs=1e-6)


def test_surface_of_own_data_has_their_names():
    data = table()
    assert axis_names(data, "weights") == ("a", "b", "bias")
    shown = surface(SurfaceView(axes="weights"), RegressionConfig(), data)
    assert shown.names == ("a", "b")


def test_columns_that_depend_on_one_another_leave_the_picture_finite():
    cells = values(30)
    cells[:, 1] = 2 * cells[:, 0]
    data = table(cells)
    assert data.exact.condition_number == float("inf")
    assert lr_limit(RegressionConfig(), data) > 0
    shown = surface(SurfaceView(axes="weights"), RegressionConfig(), data)
    assert bool(shown.ellipse(0.1).isfinite().all())
    assert shown.lowest == pytest.approx(data.exact.floor, abs=1e-12)
