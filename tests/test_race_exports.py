"""What is taken home of a race, a sweep and a fair race, tested by using it."""

import csv
import io
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from urllib.parse import parse_qs, urlsplit

import pytest

from labcore.events import DivergedAt, Reached
from labcore.exports import cells_csv, points_csv, run_json
from labcore.fair_race import FairRaceConfig, FairRaceHistory, fair_race
from labcore.optimizers import SGD, Adam
from labcore.race import Racer
from labcore.sweep import SweepConfig, SweepHistory, sweep
from labui import race_exports
from tests.test_pages import press

SHORT = {"batch_size": ["100"], "epochs": ["2"], "rates": ["3"], "racer": ["sgd", "adam,lr=0.02"]}
RACE = {**SHORT, "engine": ["from scratch"], "pace": ["max"]}
RACERS = (Racer(SGD()), Racer(Adam(lr=0.02), "=Mine"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def files(monkeypatch):
    """What the page's last run offers to take home: by file name, what makes the file."""
    offered = {}

    def button(label, data, *, file_name, **_):
        offered[file_name] = data

    monkeypatch.setattr(race_exports.st, "download_button", button)
    return offered


def ended(app, label, job):
    press(app, label)
    assert app.session_state[job].wait(30)
    time.sleep(0.05)
    return app.run()


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def followed(events, history):
    for event in events:
        history.add(event)
    return history


@pytest.fixture(scope="module")
def swept():
    config = SweepConfig(racers=RACERS, rates=3, highest=10.0, epochs=2, seed=4)
    return followed(sweep(config), SweepHistory(config))


@pytest.fixture(scope="module")
def fair():
    config = FairRaceConfig(racers=RACERS, rates=3, seeds=2, epochs=1, batch_size=100)
    return followed(fair_race(config), FairRaceHistory(config))


# --- contents -------------------------------------------------------------------------------------


def test_runs_of_a_sweep_read_back_as_they_ended(swept):
    found = rows(cells_csv(swept))
    assert len(found) == 2 * 3
    for row, cell in zip(found, swept.cells.values(), strict=True):
        assert float(row["lr"]) == cell.lr
        match cell.outcome:
            case Reached(loss):
                assert (float(row["loss"]), row["step"]) == (loss, "")
            case DivergedAt(step):
                assert (row["loss"], int(row["step"])) == ("", step)


def test_a_racer_called_like_a_formula_is_text_to_a_spreadsheet(swept, fair):
    for text in (cells_csv(swept), cells_csv(fair), points_csv(fair)):
        assert {row["racer"] for row in rows(text)} == {"SGD", "'=Mine"}


def test_bands_of_a_fair_race_read_back_exactly(fair):
    found = [(r["racer"], int(r["step"]), float(r["loss"])) for r in rows(points_csv(fair))]
    points = [point for band in fair.bands.values() for point in band]
    names = {"=Mine": "'=Mine"}
    assert found == [(names.get(p.racer, p.racer), p.step, p.loss) for p in points]


def test_tried_runs_of_a_fair_race_have_their_seeds(fair):
    found = {(row["racer"], row["lr"], row["seed"]) for row in rows(cells_csv(fair))}
    assert len(found) == 2 * 3 * 2
    assert {seed for *_, seed in found} == {"0", "1"}


def test_whole_sweep_says_with_what_and_on_what_it_ran(swept):
    found = json.loads(run_json(swept))
    assert found["config"]["seed"] == 4
    assert found["data"]["rows"] == 1500
    assert found["versions"]["torch"]
    assert [cell["lr"] for cell in found["cells"]] == [c.lr for c in swept.cells.values()]


def test_whole_fair_race_has_its_budget_and_its_rates(fair):
    found = json.loads(run_json(fair))
    assert found["budget"] == fair.budget
    rates = {name: choice["lr"] for name, choice in found["chosen"].items()}
    assert rates == {name: choice.lr for name, choice in fair.chosen.items()}
    assert found["bands"]["SGD"][-1]["loss"] == fair.latest["SGD"].loss


# --- on the page ----------------------------------------------------------------------------------


def losses(app):
    """Last loss of each racer of the session's race."""
    with app.session_state["job:race"].reading() as history:
        return {name: lane.latest.loss for name, lane in history.lanes.items()}


def test_race_as_numbers(visit, files):
    app = ended(visit(**RACE), "Start", "job:race")
    last = {row["racer"]: float(row["loss"]) for row in rows(files["points.csv"]())}
    assert last == losses(app)
    whole = json.loads(files["race.json"]())
    assert {each["name"]: each["points"][-1]["loss"] for each in whole["racers"]} == losses(app)
    assert whole["data"]["title"] == "airfoil self-noise"


def test_race_as_pictures(visit, files):
    ended(visit(**RACE), "Start", "job:race")
    texts = {each.text for each in ET.fromstring(files["loss.svg"]()).iter(f"{SVG}text")}
    assert {"SGD lr 0.01", "Adam lr 0.02", "epochs"} <= texts
    assert files["loss.png"]()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("others", ["optimum", "current"])
def test_surface_is_taken_home_where_it_is_shown(visit, files, others):
    ended(visit(**RACE, look="surface", others=others), "Start", "job:race")
    texts = {each.text for each in ET.fromstring(files["surface.svg"]()).iter(f"{SVG}text")}
    assert texts
    assert files["surface.png"]()[:4] == b"\x89PNG"


def test_surface_is_not_offered_where_there_is_none(visit, files):
    ended(visit(**RACE, look="surface", model="hidden"), "Start", "job:race")
    assert "surface.svg" not in files
    assert "loss.svg" in files


def test_race_as_a_script_that_repeats_it(visit, files, tmp_path):
    app = ended(visit(**RACE), "Start", "job:race")
    (tmp_path / "race.py").write_text(files["race.py"](), encoding="utf-8")
    command = [sys.executable, "race.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = {line.split(":")[0]: float(line.split()[2]) for line in run.stdout.splitlines()}
    assert printed == pytest.approx(losses(app), abs=1e-5)


def test_race_can_be_taken_home_while_it_runs(visit, files):
    app = press(visit(**{**RACE, "epochs": ["10000"]}), "Start")
    app.run()
    assert json.loads(files["race.json"]())["racers"]


def test_before_the_start_there_is_only_a_link(visit, files):
    app = visit(**RACE)
    assert files == {}
    assert len(app.code) == 1


def test_link_restores_the_page(visit, files):
    app = visit(**RACE, look="surface", seed="5")
    link = urlsplit(app.code[0].value)
    assert link.path == "/optimizers"
    again = visit(**parse_qs(link.query))
    drafts = [each.session_state["draft:race"] for each in (app, again)]
    assert drafts[0].race() == drafts[1].race()
    assert drafts[0].values == drafts[1].values
    assert not again.warning


def test_sweep_as_files(visit, files):
    app = ended(visit(**SHORT, look="sweep"), "Sweep", "job:sweep")
    assert len(rows(files["sweep.csv"]())) == 2 * 3
    assert json.loads(files["sweep.json"]())["config"]["rates"] == 3
    texts = {each.text for each in ET.fromstring(files["sweep.svg"]()).iter(f"{SVG}text")}
    assert {"learning rate", "SGD", "Adam"} <= texts
    assert files["sweep.png"]()[:4] == b"\x89PNG"
    assert "look=sweep" in app.code[0].value


def test_fair_race_as_files(visit, files):
    ended(visit(**SHORT, look="fair", seeds="2"), "Tune and race", "job:fair race")
    assert {row["racer"] for row in rows(files["bands.csv"]())} == {"SGD", "Adam"}
    assert len(rows(files["tried.csv"]())) == 2 * 3 * 2
    assert json.loads(files["fair_race.json"]())["config"]["seeds"] == 2
    assert b"PNG" in files["fair_race.png"]()[:8]
    ET.fromstring(files["fair_race.svg"]())
