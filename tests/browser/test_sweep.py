"""Sweep, fair race, prediction, past races and files of the Optimizers page in a real browser."""

import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from playwright.sync_api import expect

expect.set_options(timeout=20_000)

PATH = "/optimizers?engine=from+scratch&pace=max&batch_size=100&epochs=2&rates=5"
TWO = f"{PATH}&racer=sgd&racer=adam"

DOTS = "svg .mark-symbol path[opacity='0']"
"""What can be clicked of a sweep's lines."""


def main(page):
    return page.get_by_test_id("stMain")


def button(page, label):
    return main(page).get_by_role("button", name=label, exact=True)


def opened(window, url):
    window.page.goto(url)
    main(window.page).get_by_role("radio", name="Curves").wait_for()
    return window.page


def look(page, option):
    main(page).get_by_role("radio", name=option, exact=True).click()


def expect_finished(page):
    expect(page.get_by_test_id("stProgress")).to_contain_text(re.compile(r"^\s*Finished\b"))


def swept(page):
    button(page, "Sweep").click()
    expect_finished(page)
    button(page, "Add as a racer").wait_for()
    return page


def raced(page):
    button(page, "Start").click()
    expect_finished(page)
    return page


def racers(page):
    return [each.input_value() for each in page.get_by_role("combobox", name="Racer").all()]


def download(page, label):
    """The content of a file that is taken home."""
    main(page).get_by_role("button", name="Take it home").click()
    with page.expect_download() as arriving:
        page.get_by_role("button", name=label, exact=True).click()
    page.keyboard.press("Escape")
    return arriving.value.path().read_bytes()


def test_racer_from_a_sweep_races_is_pinned_and_taken_home(server, visit, tmp_path):
    window = visit()
    page = swept(opened(window, f"{server.url}{TWO}&look=sweep"))
    button(page, "Add as a racer").click()
    expect(page.get_by_role("combobox", name="Racer")).to_have_count(3)

    look(page, "Curves")
    raced(page)
    losses = {
        row["racer"]: float(row["loss"])
        for row in csv.DictReader(io.StringIO(download(page, "Points, CSV").decode()))
    }
    assert len(losses) == 3
    (tmp_path / "race.py").write_bytes(download(page, "Script"))
    command = [sys.executable, "race.py"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    repeated = {
        line.partition(":")[0]: float(line.split("loss ")[1].split()[0])
        for line in printed.stdout.splitlines()
    }
    assert repeated == pytest.approx(losses, abs=1e-5)
    assert len(json.loads(download(page, "All, JSON"))["racers"]) == 3
    assert download(page, "Loss, PNG")[:4] == b"\x89PNG"

    look(page, "Past races")
    pin(page, 0)
    page.get_by_text("Of each pinned race").wait_for()
    assert [each for each in window.errors if "404" not in each] == []


def pin(page, row):
    """Tick a race's box; the table is one picture, with a column of boxes at its left."""
    table = page.get_by_test_id("stDataFrame").locator("canvas").first
    table.wait_for()
    # The picture lies below what takes the clicks.
    table.click(position={"x": 42, "y": 35 * row + 52}, force=True)


def test_click_on_a_run_of_a_sweep_chooses_it(server, visit):
    page = swept(opened(visit(), f"{server.url}{TWO}&look=sweep"))
    # At the fourth of five rates the two lines are far apart.
    dot = main(page).locator(DOTS).nth(3)
    words = dot.get_attribute("aria-label")
    racer = re.search(r"racer: (\w+)", words)[1]
    lr = re.search(r"learning rate: ([\d.]+)", words)[1]
    box = dot.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    run = page.get_by_role("combobox", name="Run")
    expect(run).to_have_value(re.compile(rf"^{racer}, lr {re.escape(lr)}: "))
    button(page, "Add as a racer").click()
    expect(page.get_by_role("combobox", name="Racer")).to_have_count(3)
    assert f"{racer.lower()}%2Clr%3D{lr}" in page.url or f"{racer.lower()},lr={lr}" in page.url


def test_click_on_a_cell_of_a_grid_chooses_it(server, visit):
    url = f"{server.url}{TWO}&look=sweep&against=batch_size&values=50+500"
    page = swept(opened(visit(), url))
    cell = main(page).locator("svg .mark-rect path").nth(3)
    words = cell.get_attribute("aria-label")
    lr, size = re.search(r"learning rate: ([\d.]+); batch size: (\d+)", words).groups()
    box = cell.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    chosen = re.compile(rf"lr {re.escape(lr)}, batch size {size}: ")
    expect(page.get_by_role("combobox", name="Run")).to_have_value(chosen)


def test_sweeps_picture_is_taken_home(server, visit):
    page = swept(opened(visit(), f"{server.url}{TWO}&look=sweep"))
    drawn = ET.fromstring(download(page, "Sweep, SVG"))
    texts = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"SGD", "Adam", "learning rate"} <= texts


def test_fair_race_ends_with_rates_to_race_with(server, visit):
    window = visit()
    page = opened(window, f"{server.url}{TWO}&look=fair&seeds=2")
    page.get_by_text("Budget: each optimiser tries 5 learning rates").wait_for()
    button(page, "Tune and race").click()
    expect_finished(page)
    button(page, "Race with these").click()
    button(page, "Start").wait_for()
    rates = [each.input_value() for each in page.get_by_role("textbox", name="Learning rate").all()]
    assert len(rates) == 2
    assert set(rates) <= {"0.0001", "0.001", "0.01", "0.1", "1"}
    assert [each for each in window.errors if "404" not in each] == []


def test_guess_is_seen_beside_the_result(server, visit):
    page = opened(visit(), f"{server.url}{TWO}")
    main(page).get_by_role("button", name="Predict first").click()
    page.get_by_role("combobox", name="Who wins?").click()
    page.get_by_role("option", name="Adam", exact=True).click()
    page.get_by_role("textbox", name="Its loss").fill("0,25")
    page.get_by_role("button", name="Commit").click()
    page.get_by_text("Committed for the next start").wait_for()
    page.keyboard.press("Escape")
    raced(page)
    row = page.get_by_test_id("stTable").get_by_role("row").filter(has_text="Who wins?")
    expect(row).to_contain_text(re.compile("✓ right|✗ not this time"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("option", ["sweep", "fair", "past"])
def test_phone_need_not_scroll_sideways(server, visit, option, scheme):
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
    page = opened(visit(**phone), f"{server.url}{TWO}&look={option}")
    page.wait_for_timeout(1000)
    for box in ("document.documentElement", "document.querySelector('[data-testid=stMain]')"):
        assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0
