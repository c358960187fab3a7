"""The Scaling page in a real browser: its four parts, keys, files, and a link that is shared."""

import re

import pytest
from playwright.sync_api import expect

from labcore.exercises import EXERCISES
from labcore.scaling import curve, summary
from labcore.scaling_config import PRESETS, ScalingConfig
from labcore.uneven import UnevenConfig, Worker, sum_up
from tests.browser.test_optimizers import PHONE, main

expect.set_options(timeout=20_000)

PATH = "/scaling"
FOLD = {"viewport": {"width": 1280, "height": 800}}
PARTS = ("what_if", "uneven", "reported", "exercises")
CHARTS = {"what_if": 3, "uneven": 1, "reported": 2, "exercises": 0}


def opened(window, url, charts=3):
    """A page with so many charts, all drawn."""
    window.page.goto(url)
    window.page.get_by_text("Look at", exact=True).wait_for()
    expect(drawn(window.page)).to_have_count(charts)
    return window.page


def drawn(page):
    return page.get_by_test_id("stVegaLiteChart").locator("svg, canvas")


def button(page, label):
    return main(page).get_by_role("button", name=label, exact=True)


def test_sentence_picture_and_curves_are_in_view_without_scrolling(visit, server):
    page = opened(visit(**FOLD), server.url + PATH)
    config = ScalingConfig()
    sentence = main(page).get_by_text(summary(config, curve(config)))
    for each in (sentence, *drawn(page).all()):
        box = each.bounding_box()
        assert box["y"] + box["height"] * 0.85 < FOLD["viewport"]["height"]


def test_an_example_is_in_the_link_that_is_shared(visit, server):
    page = opened(visit(), server.url + PATH)
    why, config = PRESETS["LeNet on 16"]
    button(page, "LeNet on 16").click()
    expect(main(page).get_by_text(summary(config, curve(config)))).to_be_visible()
    expect(main(page).get_by_text(why)).to_be_visible()
    page.wait_for_url(re.compile(r"[?&]model=lenet\b"))
    other = opened(visit(), page.url)
    expect(main(other).get_by_text(summary(config, curve(config)))).to_be_visible()


def test_what_is_refused_is_said_and_the_picture_stays(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?devices=16")
    field = main(page).get_by_role("spinbutton", name="Batch size")
    field.fill("8")
    field.press("Enter")
    expect(main(page).get_by_text("received 16 devices for 8 rows")).to_be_visible()
    expect(drawn(page)).to_have_count(3)


def test_keys_move_a_slider_and_the_shares_follow(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?part=uneven", charts=1)
    main(page).get_by_role("slider").nth(2).focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile(r"worker=200%2C1%2Cin%2Cdevice"))
    workers = (Worker(), Worker(), Worker(speed=200.0))
    said = sum_up(UnevenConfig(batch_size=128, workers=workers))
    expect(main(page).get_by_text(said)).to_be_visible()


def test_a_run_here_stands_beside_its_prediction(visit, server):
    query = "part=uneven&share_batch=24&share_devices=2&worker=1000,1&worker=500,1"
    page = opened(visit(), f"{server.url}{PATH}?{query}", charts=1)
    button(page, "Run it").click()
    expect(main(page).get_by_text("Measured here", exact=True)).to_be_visible(timeout=60_000)
    expect(main(page).get_by_text("Predicted from the speed here", exact=True)).to_be_visible()
    expect(drawn(page)).to_have_count(3)


def test_the_notes_table_says_that_it_is_reported(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?part=reported", charts=2)
    expect(main(page).get_by_text("Reported by the notes")).to_be_visible()
    expect(main(page).get_by_text("Accuracy falls with the batch")).to_be_visible()


def test_two_seeds_of_the_notes_pair_are_trained_and_drawn(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?part=reported&epochs=1&seeds=2", charts=2)
    button(page, "Train them").click()
    expect(drawn(page)).to_have_count(3)
    expect(main(page)).to_contain_text(
        "6,000 images, 2 seeds: after 1 epoch test accuracy", timeout=60_000
    )
    expect(button(page, "Train them")).to_be_enabled()


def test_a_guess_comes_before_the_answer(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?part=exercises&exercise=central", charts=0)
    words = EXERCISES["central"].solve().words
    expect(button(page, "Commit and reveal")).to_be_disabled()
    main(page).get_by_text("about 4 times", exact=True).click()
    button(page, "Commit and reveal").click()
    said = "Not so. You said: about 4 times. It is: about 16 times."
    expect(main(page).get_by_text(said)).to_be_visible()
    expect(main(page).get_by_text(words)).to_be_visible()


@pytest.mark.parametrize(
    ("label", "name", "begins"),
    [
        ("Modelled step, CSV", "scaling-modelled-step.csv", b"devices,part,place,seconds"),
        ("Speed-up, SVG", "scaling-speed-up.svg", b"<svg"),
        ("Efficiency, PNG", "scaling-efficiency.png", b"\x89PNG"),
    ],
)
def test_figures_and_pictures_can_be_taken_home(visit, server, tmp_path, label, name, begins):
    page = opened(visit(), server.url + PATH)
    button(page, "Take it home").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=label, exact=True).click()
    assert download.value.suggested_filename == name
    download.value.save_as(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_wider_than_a_phone(visit, server, part):
    page = opened(visit(**PHONE), f"{server.url}{PATH}?part={part}", charts=CHARTS[part])
    for box in ("document.documentElement", "document.querySelector('[data-testid=stMain]')"):
        assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0


def test_the_page_reports_no_error(visit, server):
    window = visit(color_scheme="dark")
    page = opened(window, server.url + PATH)
    for label, part in (
        ("Uneven devices", "uneven"),
        ("The notes' table", "reported"),
        ("Exercises", "exercises"),
    ):
        main(page).get_by_role("radio", name=label, exact=True).click()
        expect(drawn(page)).to_have_count(CHARTS[part])
    assert [error for error in window.errors if "404" not in error] == []
