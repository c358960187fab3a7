"""The microscope on the Optimizers page in a real browser: surface, steps, forks, own data."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

expect.set_options(timeout=20_000)

PATH = "/optimizers"
QUICK = "racer=sgd&racer=adam&engine=from+scratch&pace=max&epochs=1"
WIDE = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}}


def main(page):
    """The page without Streamlit's header, which has a Stop of its own."""
    return page.get_by_test_id("stMain")


def press(page, label):
    main(page).get_by_role("button", name=label, exact=True).click()


def choose(page, option):
    main(page).get_by_role("radio", name=option, exact=True).click()


def expect_state(page, state):
    expect(page.get_by_test_id("stProgress")).to_contain_text(re.compile(rf"^\s*{state}\b"))


def opened(window, url):
    window.page.goto(url)
    main(window.page).get_by_role("button", name="Start").wait_for()
    return window.page


def errors(window):
    """What went wrong; at an address within the lab Streamlit asks for two things twice."""
    return [each for each in window.errors if "404 (Not Found)" not in each]


def raced(page):
    press(page, "Start")
    expect_state(page, "Finished")
    return page


def surface(page):
    return page.get_by_test_id("stVegaLiteChart").nth(1)


def select(page, label, option):
    main(page).get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def csv():
    draws = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    rows = [";".join(map(str, (*row, row.sum().round(3)))).replace(".", ",") for row in draws]
    return "\n".join(["=SUM(A1);two;<b>three</b>;four", *rows]).encode()


def upload(page, content, name="mine.csv"):
    if not page.get_by_text("A CSV file").is_visible():
        page.get_by_text("Own data", exact=True).click()
    file = {"name": name, "mimeType": "text/csv", "buffer": content}
    page.locator("input[type=file]").set_input_files([file])


# --- surface --------------------------------------------------------------------------------------


def test_surface_is_drawn_beside_the_curves_with_all_paths(server, visit):
    window = visit(**WIDE)
    page = raced(opened(window, f"{server.url}{PATH}?{QUICK}"))
    choose(page, "Surface")
    expect(surface(page)).to_have_attribute("aria-label", re.compile("paths of SGD, Adam"))
    curves = page.get_by_test_id("stVegaLiteChart").nth(0).bounding_box()
    shown = surface(page).bounding_box()
    assert shown["x"] > curves["x"] + curves["width"] - 1
    assert shown["y"] + shown["height"] < 800, "the figure must be in view without scrolling"
    assert errors(window) == []


def test_other_axes_keep_the_runs(server, visit):
    page = raced(opened(visit(**WIDE), f"{server.url}{PATH}?{QUICK}&look=surface"))
    choose(page, "weights")
    page.wait_for_url(re.compile("axes=weights"))
    select(page, "Up", "velocity")
    expect(surface(page)).to_have_attribute("aria-label", re.compile("frequency and velocity"))
    expect_state(page, "Finished")
    page.wait_for_url(re.compile("axes=weights&across=0&up=3"))
    page.reload()
    expect(surface(page)).to_have_attribute("aria-label", re.compile("frequency and velocity"))


def test_phone_has_the_surface_below_the_curves(server, visit):
    page = opened(visit(**PHONE), f"{server.url}{PATH}?{QUICK}&look=surface")
    surface(page).locator("svg").wait_for()
    curves = page.get_by_test_id("stVegaLiteChart").nth(0).bounding_box()
    shown = surface(page).bounding_box()
    assert shown["y"] >= curves["y"] + curves["height"]
    assert shown["width"] <= 390


@pytest.mark.parametrize("look", ["surface", "hood"])
def test_phone_need_not_scroll_sideways(server, visit, look):
    page = opened(visit(**PHONE), f"{server.url}{PATH}?{QUICK}&look={look}")
    press(page, "Step")
    expect_state(page, "Paused")
    for box in ("document.documentElement", "document.querySelector('[data-testid=stMain]')"):
        assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0


# --- under the hood -------------------------------------------------------------------------------


def test_numbers_follow_the_step_button(server, visit):
    page = opened(visit(**WIDE), f"{server.url}{PATH}?{QUICK}&look=hood")
    before = None
    for step in (1, 2, 3):
        press(page, "Step")
        page.get_by_text(f"Step {step} moved").wait_for()
        value, new = (
            page.locator(".hood tbody tr").first.locator("td").nth(place).inner_text()
            for place in (0, -1)
        )
        assert before in (None, value)
        before = new
    expect(page.get_by_text("Step 3 moved")).to_be_in_viewport()


def test_source_is_that_of_the_chosen_racer(server, visit):
    page = opened(visit(**WIDE), f"{server.url}{PATH}?{QUICK}&look=hood")
    expect(page.get_by_test_id("stCode").first).to_contain_text("parameter - self.lr * gradient")
    main(page).get_by_role("combobox", name="Racer", exact=True).click()
    page.get_by_role("option", name="Adam", exact=True).click()
    expect(page.get_by_test_id("stCode").first).to_contain_text("self.beta2**step")


# --- forks ----------------------------------------------------------------------------------------


def test_ended_run_is_forked_and_the_parents_curve_stays(server, visit):
    window = visit(**WIDE)
    page = raced(opened(window, f"{server.url}{PATH}?{QUICK}"))
    page.get_by_text("Fork a racer").click()
    page.get_by_role("spinbutton", name="From step").fill("40")
    page.get_by_role("textbox", name="Learning rate").last.fill("0.05")
    page.keyboard.press("Enter")
    press(page, "Fork")
    rows = page.locator("table.standings tbody th")
    expect(rows).to_have_count(3)
    expect(page.locator("table.standings")).to_contain_text("SGD from 40")
    expect(page.locator("table.standings")).to_contain_text("lr 0.05 · finished")
    assert errors(window) == []


def test_paused_race_is_forked_where_it_is(server, visit):
    page = opened(visit(**WIDE), f"{server.url}{PATH}?{QUICK}")
    for _ in range(3):
        press(page, "Step")
    expect(page.get_by_test_id("stProgress")).to_contain_text("Paused · step 3 of")
    page.get_by_text("Fork a racer").click()
    press(page, "Fork")
    expect(page.locator("table.standings tbody th")).to_have_count(3)
    expect(page.get_by_test_id("stProgress")).to_contain_text("Paused · step 3 of")


# --- own data -------------------------------------------------------------------------------------


def test_own_data_race_from_upload_to_the_way_back(server, visit):
    window = visit(**WIDE)
    page = opened(window, f"{server.url}{PATH}?{QUICK}&look=surface&axes=weights&across=0&up=2")
    upload(page, csv())
    expect(page.get_by_role("heading", level=1)).to_contain_text("mine.csv")
    page.get_by_text("60 rows, 3 features").wait_for()
    raced(page)
    expect(page.locator("table.standings caption")).to_contain_text("all 60 rows")
    expect(surface(page)).to_have_attribute("aria-label", re.compile(r"=SUM\(A1\) and <b>three"))
    press(page, "Back to the airfoil data")
    expect(page.get_by_role("heading", level=1)).to_contain_text("airfoil")
    expect_state(page, "Ready")
    assert errors(window) == []


def test_file_of_six_megabytes_is_refused_in_words(server, visit):
    page = raced(opened(visit(**WIDE), f"{server.url}{PATH}?{QUICK}"))
    upload(page, b"a,b\n" + b"1,2\n" * (6 * 2**20 // 4), "big.csv")
    expect(page.get_by_test_id("stFileUploader")).to_contain_text(re.compile("5.?0?MB or smaller"))
    expect_state(page, "Finished")


def test_refused_file_is_explained_and_the_race_stays(server, visit):
    page = raced(opened(visit(**WIDE), f"{server.url}{PATH}?{QUICK}"))
    upload(page, b"", "empty.csv")
    expect(page.get_by_test_id("stAlert")).to_contain_text("empty.csv is empty")
    expect_state(page, "Finished")
