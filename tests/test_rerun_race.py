"""A race's stand-alone script, tested by running it: its numbers are the race's."""

import ast
import csv
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labcore import regression
from labcore.datasets.table import Table
from labcore.events import Diverged, LossRecorded, RacerEvent
from labcore.optimizers import OPTIMIZERS, SGD, Adam, Momentum
from labcore.quoting import Quotes
from labcore.race import RaceConfig, Racer, race
from labcore.regression import Stage
from labcore.rerun_race import race_script

ALL = tuple(Racer(kind()) for kind in OPTIMIZERS.values())
FORKED = (
    Racer(Momentum(momentum=0.5), "slower", (Stage(Momentum(lr=0.01), 20),)),
    Racer(SGD(), "other", (Stage(Adam(), 0), Stage(Adam(lr=0.1), 31))),
    Racer(SGD(lr=5.0), "lost"),
)
CONFIGS = {
    "all by torch": RaceConfig(racers=ALL, epochs=2),
    "all from scratch": RaceConfig(racers=ALL, epochs=2, engine="from scratch", seed=3),
    "a network by torch": RaceConfig(
        racers=ALL, epochs=1, model="hidden", hidden_units=5, objective="half_mse"
    ),
    "a network from scratch": RaceConfig(
        racers=ALL, epochs=1, model="hidden", engine="from scratch", batch_size=64
    ),
    "forks by torch": RaceConfig(racers=FORKED, epochs=1, objective="half_mse"),
    "forks from scratch": RaceConfig(racers=FORKED, epochs=1, engine="from scratch"),
}
"""Every optimiser with both engines and models, forks, and a run that diverges."""

Point = tuple[str, int, float, float]


def run_alone(text: str, folder: Path, *arguments: str) -> str:
    """What a script prints that runs in a folder where nothing of the lab is to be found."""
    (folder / "script.py").write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "script.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert run.stderr == ""
    return run.stdout


def written(file: Path) -> list[Point]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return sorted(
        (row["racer"], int(row["step"]), float(row["epochs"]), float(row["loss"])) for row in rows
    )


def raced(config: RaceConfig, data: Table | None = None) -> list[Point]:
    """The same of the race itself: every recorded loss, and an infinite one where a run ends."""
    points = []
    for event in race(config, data):
        match event:
            case RacerEvent(name, LossRecorded() as point):
                points.append((name, point.step, point.epochs, point.loss))
            case RacerEvent(name, Diverged() as end):
                points.append((name, end.step, end.epochs, math.inf))
    return sorted(points)


def check_same(ours: list[Point], theirs: list[Point]) -> None:
    assert [point[:3] for point in ours] == [point[:3] for point in theirs]
    expected = [point[3] for point in theirs]
    # 1e-5 of losses near 0.24; a run on its way out has losses of any size.
    assert [point[3] for point in ours] == pytest.approx(expected, abs=1e-5, rel=1e-5)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the scripts of `CONFIGS` have run, each as a program, in one process."""
    folder = tmp_path_factory.mktemp("scripts")
    for number, config in enumerate(CONFIGS.values()):
        (folder / f"{number}.txt").write_text(race_script(config), encoding="utf-8")
    every = """
import runpy, sys
for number in range(int(sys.argv[1])):
    sys.argv = [f"{number}.txt", f"{number}.csv"]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
    run_alone(every, folder, str(len(CONFIGS)))
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_a_script_repeats_the_numbers_of_the_race(name: str, scripts: Path) -> None:
    number = list(CONFIGS).index(name)
    check_same(written(scripts / f"{number}.csv"), raced(CONFIGS[name]))


def test_a_script_prints_how_each_run_ended(tmp_path: Path) -> None:
    config = RaceConfig(racers=(Racer(SGD()), FORKED[2]), epochs=1)
    printed = run_alone(race_script(config), tmp_path)
    [*_, sgd] = [point for point in raced(config) if point[0] == "SGD"]
    [end] = [point for point in raced(config) if point[3] == math.inf]
    assert printed.splitlines() == [
        f"SGD: loss {sgd[3]:.8f} after step 150",
        f"lost: diverged at step {end[1]}",
    ]


def test_a_script_repeats_a_race_on_own_data(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    columns = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    title = 'it\'s """ $here\\'
    data = Table(title, columns[:, :3], columns[:, 3], ("a", "b", "c"), "d")
    config = RaceConfig(racers=(Racer(Adam(), 'a "name"\\'),), engine="from scratch")
    run_alone(race_script(config, data), tmp_path, "points.csv")
    check_same(written(tmp_path / "points.csv"), raced(config, data))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_script_needs_nothing_of_the_lab_and_no_name_that_it_lacks(config: RaceConfig) -> None:
    text = race_script(config)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,I", "-"]
    linted = subprocess.run(command, input=text, capture_output=True, encoding="utf-8")
    assert linted.returncode == 0, linted.stdout
    nodes = list(ast.walk(ast.parse(text)))
    imported = {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
    imported |= {each.name for n in nodes if isinstance(n, ast.Import) for each in n.names}
    packages = {str(name).partition(".")[0] for name in imported}
    assert packages - sys.stdlib_module_names == {"torch", "numpy"}


def before_the_data(text: str) -> list[str]:
    return [line for line in text.partition("\nDATA = ")[0].splitlines() if line.strip()]


def test_a_script_of_the_notes_race_is_short_enough_to_read() -> None:
    racers = tuple(Racer(OPTIMIZERS[name]()) for name in ("sgd", "momentum", "adagrad", "adam"))
    assert len(before_the_data(race_script(RaceConfig(racers=racers)))) <= 200


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_race_makes_a_script_much_longer(config: RaceConfig) -> None:
    assert len(before_the_data(race_script(config))) <= 300


def test_a_quoted_class_has_the_members_it_is_told_and_comes_after_its_base() -> None:
    text = Quotes({"Optimizer"}).quote_class(OPTIMIZERS["adamw"], {"update"})
    assert re.findall(r"^class (\w+)|^    def (\w+)", text, re.MULTILINE) == [
        ("Adam", ""), ("", "update"), ("AdamW", ""), ("", "update"),
    ]  # fmt: skip
    assert not re.search(r"formula =|lr:|@", text)


class Indirect:
    """Has a member that another one needs."""

    def first(self) -> int:
        return self.second()

    def second(self) -> int:
        return 2

    def third(self) -> int:
        return 3


def test_a_quoted_class_has_the_members_that_its_members_need() -> None:
    text = Quotes(set()).quote_class(Indirect, {"first"})
    assert re.findall(r"def (\w+)", text) == ["first", "second"]


def test_quotes_take_a_statement_of_two_names_once() -> None:
    quotes = Quotes({"model_of", "RegressionConfig", "Table", "Optimizer"})
    text = quotes.quote(regression.FromScratch) + quotes.quote(regression.random_stream)
    assert text.count("WEIGHTS, ORDER = 0, 1") == 1
