"""The Fashion-MNIST page in a real browser: what a teacher and a class do with it."""

import re

import pytest
from playwright.sync_api import expect

from labcore.classification import ClassificationConfig
from labcore.config import ruled_fields
from labcore.datasets.fashion_mnist import EMBEDDED
from labcore.replicas import PHASES
from labcore.rerun import script
from labui.classification_form import Detail
from tests.browser.test_optimizers import (
    PHONE,
    choose,
    expect_moving,
    expect_state,
    go_to,
    main,
    progress,
    step,
    wait_until,
)
from tests.children import children

expect.set_options(timeout=20_000)

PATH = "/fashion_mnist"
SHORT = f"{PATH}?replicas=2&images=200&batch_size=50&epochs=2&initialisation=he"
LONG = f"{PATH}?replicas=2&images=6000&batch_size=20&epochs=100"
"""A run that no test waits for."""
SLOW = f"{PATH}?model=resnet18&replicas=4&images=3000&batch_size=256&epochs=10"
"""A run whose steps take seconds."""

POINTS = """place => {
    const chart = document.querySelectorAll("[data-testid=stVegaLiteChart]")[place];
    const paths = [...(chart?.querySelectorAll(".mark-line path") ?? [])];
    return paths.reduce((n, path) => n + path.getAttribute("d").match(/[ML]/g).length, 0);
}"""
"""How many points the curves of a chart have: 0 is the loss, 1 the accuracy."""


@pytest.fixture(autouse=True, scope="module")
def only_the_sample():
    """The same images on every machine, for the server that starts after this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_DATA_DIR", str(EMBEDDED))
        yield


def button(page, label):
    return main(page).get_by_role("button", name=label, exact=True)


def press(page, label):
    button(page, label).click()


def opened(window, url):
    window.page.goto(url)
    button(window.page, "Start").wait_for()
    return window.page


def arrived(window, server):
    """By the sidebar: a link into the lab makes Streamlit ask for files that are not there."""
    window.page.goto(server.url)
    go_to(window.page, "Fashion-MNIST")
    button(window.page, "Start").wait_for()
    return window.page


def type_into(page, name, value):
    page.get_by_role("spinbutton", name=name).fill(str(value))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"={value}\b"))


def finished(page):
    press(page, "Start")
    expect_state(page, "Finished")
    return page


def points(page, place):
    return page.evaluate(POINTS, place)


def chart(page, place):
    return page.get_by_test_id("stVegaLiteChart").nth(place)


# --- the whole story ------------------------------------------------------------------------------


def test_lenet_on_four_devices_from_start_to_summary_with_a_pause_and_a_return(server, visit):
    window = visit()
    page = arrived(window, server)
    type_into(page, "Epochs", 3)
    choose(page, "He")
    press(page, "Start")
    wait_until(page, lambda: points(page, 0) > 10)
    early = points(page, 0)
    wait_until(page, lambda: points(page, 0) > early)

    press(page, "Pause")
    expect_state(page, "Paused")
    held = progress(page).inner_text(), points(page, 0)
    page.wait_for_timeout(1200)
    assert (progress(page).inner_text(), points(page, 0)) == held

    at = step(page)
    go_to(page, "Home")
    page.get_by_text("This machine").wait_for()
    go_to(page, "Fashion-MNIST")
    expect_state(page, "Paused")
    assert step(page) == at

    press(page, "Resume")
    expect_moving(page)
    expect(progress(page)).to_contain_text("Finished · epoch 3.00 of 3", timeout=90_000)
    expect(main(page)).to_contain_text(re.compile(r"Test accuracy 0\.[678]\d\d, [\d.]+ s/epoch"))
    wait_until(page, lambda: points(page, 1) == 3)
    assert window.errors == []


# --- links ----------------------------------------------------------------------------------------


def test_link_restores_the_run(server, visit):
    page = opened(
        visit(),
        f"{server.url}{PATH}?model=resnet18_quarter&replicas=3&images=300&batch_size=30&lr=0.05"
        "&split=balanced&allreduce=ring&seed=7&detail=time",
    )
    for name, value in {"Devices": "3", "Training images": "300", "Seed": "7"}.items():
        expect(page.get_by_role("spinbutton", name=name)).to_have_value(value)
    expect(page.get_by_role("textbox", name="Learning rate")).to_have_value("0.05")
    for option in ("ResNet-18, quarter width", "balanced", "ring", "Where the time goes"):
        expect(main(page).get_by_role("radio", name=option, exact=True)).to_be_checked()


def test_detail_that_is_looked_at_reaches_the_url(server, visit):
    page = opened(visit(), server.url + SHORT)
    choose(page, "What it learnt")
    page.wait_for_url(re.compile("detail=learnt"))


# --- in mid run -----------------------------------------------------------------------------------


def test_one_step_at_a_time(server, visit):
    page = opened(visit(), server.url + LONG)
    for taken in (1, 2, 3):
        press(page, "Step")
        expect(progress(page)).to_contain_text(re.compile(rf"Paused · .*step {taken} of"))


def test_another_detail_in_mid_run_leaves_it_running(server, visit):
    page = opened(visit(), server.url + LONG)
    press(page, "Start")
    expect_moving(page)
    choose(page, "Where the time goes")
    chart(page, 2).locator(".mark-rect path").first.wait_for()
    expect_moving(page)


def test_charts_stay_in_place_while_a_run_moves(server, visit):
    page = opened(visit(), server.url + LONG)
    press(page, "Start")
    wait_until(page, lambda: points(page, 0) > 2)
    place = (
        "() => [...document.querySelectorAll('svg.marks')].slice(0, 2).map("
        "each => Object.values(each.getBoundingClientRect().toJSON()).map(Math.round).join())"
    )
    before = page.evaluate(place)
    seen = set()
    for _ in range(15):
        page.wait_for_timeout(150)
        seen.add(tuple(page.evaluate(place)))
    assert seen == {tuple(before)}


def test_stop_in_the_middle_of_a_step_of_a_residual_network(server, visit):
    page = opened(visit(), server.url + SLOW)
    press(page, "Start")
    # Early in a step, of which some seconds are still to come; and whichever step it is by the time
    # that the trial of the model, for the estimate, lets the page be drawn.
    inside = re.compile(r"forward on device [12] of 4")
    expect(progress(page)).to_contain_text(inside, timeout=60_000)
    at = step(page)
    press(page, "Stop")
    expect(progress(page)).to_contain_text(re.compile(rf"^\s*Stopped · .*step {at} of"))
    expect(button(page, "Stop")).to_be_disabled()
    # Whoever comes next need not wait for the rest of the step.
    opened(window := visit(), server.url + SHORT)
    finished(window.page)


# --- details --------------------------------------------------------------------------------------


def test_every_detail_draws(server, visit):
    page = finished(opened(visit(), server.url + SHORT))
    page.get_by_test_id("stDataFrame").locator("canvas").first.wait_for()

    choose(page, "Where the time goes")
    expect(chart(page, 2).locator(".mark-rect path")).to_have_count(len(PHASES))

    choose(page, "What it learnt")
    expect(chart(page, 2).locator(".mark-rect path")).to_have_count(100)
    images = page.get_by_test_id("stImage").locator("img")
    expect(images).to_have_count(24 + 20)
    widths = "all => all.map(each => each.naturalWidth)"
    wait_until(page, lambda: min(images.evaluate_all(widths)) >= 28)

    choose(page, "All runs")
    page.get_by_test_id("stDataFrame").locator("canvas").first.wait_for()
    expect(page.get_by_role("combobox", name="Remove runs")).to_be_visible()


def pin(page, row):
    """Tick a run's box; the table is one picture, with a column of boxes at its left."""
    table = page.get_by_test_id("stDataFrame").locator("canvas").first
    table.wait_for()
    # The picture lies below what takes the clicks.
    table.click(position={"x": 42, "y": 35 * row + 52}, force=True)


def legend(page):
    return chart(page, 0).locator(".role-legend-label text").all_text_contents()


def test_pinned_run_is_drawn_beside_the_next_one(server, visit):
    page = finished(opened(visit(), f"{server.url}{SHORT}&detail=runs"))
    pin(page, 0)
    type_into(page, "Devices", 1)
    finished(page)
    wait_until(page, lambda: [each.rpartition(" ")[2] for each in legend(page)] == ["k=1", "k=2"])


def test_run_can_be_pinned_while_it_moves(server, visit):
    page = opened(visit(), f"{server.url}{LONG}&detail=runs")
    press(page, "Start")
    expect_moving(page)
    pin(page, 0)
    press(page, "Stop")
    expect_state(page, "Stopped")
    press(page, "Reset")
    wait_until(page, lambda: len(legend(page)) == 2)


def test_confusion_matrix_names_every_class_twice(server, visit):
    page = finished(opened(visit(), f"{server.url}{SHORT}&detail=learnt"))
    for name in ("T-shirt/top", "Ankle boot"):
        expect(chart(page, 2).locator("text").get_by_text(name, exact=True)).to_have_count(2)


# --- files ----------------------------------------------------------------------------------------


def download(page, label):
    """The content of a file that is taken home."""
    main(page).get_by_role("button", name="Take it home").click()
    with page.expect_download() as arriving:
        page.get_by_role("button", name=label, exact=True).click()
    page.keyboard.press("Escape")
    return arriving.value.suggested_filename, arriving.value.path().read_bytes()


def test_script_can_be_taken_home(server, visit):
    page = finished(opened(visit(), server.url + SHORT))
    config = ClassificationConfig(
        replicas=2, images=200, batch_size=50, epochs=2, initialisation="he"
    )
    name, content = download(page, "Script")
    threads = re.compile(r"set_num_threads\(\d+\)")
    assert name == "rerun.py"
    assert threads.sub("", content.decode()) == threads.sub("", script(config))


def test_picture_can_be_taken_home(server, visit):
    page = finished(opened(visit(), server.url + SHORT))
    name, content = download(page, "Loss, PNG")
    assert (name, content[:8]) == ("loss.png", b"\x89PNG\r\n\x1a\n")


# --- everybody can use it -------------------------------------------------------------------------


def test_keyboard_alone_starts_a_run(server, visit):
    page = opened(visit(), server.url + LONG)
    for _ in range(40):
        page.keyboard.press("Tab")
        if "Start" in page.evaluate("document.activeElement.closest('button')?.innerText ?? ''"):
            break
    page.keyboard.press("Enter")
    expect_moving(page)


def test_charts_have_descriptions_for_screen_readers(server, visit):
    page = opened(visit(), server.url + SHORT)
    for place, words in enumerate((r"^Training loss of .*\.$", r"^Test accuracy .*\.$")):
        expect(chart(page, place)).to_have_attribute("aria-label", re.compile(words))


DETAILS = next(rule for each, rule in ruled_fields(Detail) if each.name == "detail").options
DETAILS = {words: name for name, words in DETAILS.items()}


def test_phone_need_not_scroll_sideways(server, visit):
    page = finished(opened(visit(**PHONE), server.url + SHORT))
    for detail in DETAILS:
        choose(page, detail)
        page.wait_for_timeout(500)
        for box in ("document.documentElement", "document.querySelector('[data-testid=stMain]')"):
            assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0, detail


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_draws_a_run_without_an_error(server, visit, theme):
    window = visit(color_scheme=theme)
    page = arrived(window, server)
    type_into(page, "Training images", 200)
    type_into(page, "Epochs", 2)
    finished(page)
    for detail in DETAILS:
        choose(page, detail)
        page.wait_for_url(re.compile(f"detail={DETAILS[detail]}"))
        page.locator("svg.marks").first.wait_for()
    assert window.errors == []


# --- processes ------------------------------------------------------------------------------------

ON_TWO = f"{PATH}?engine=processes&replicas=2&images=200&batch_size=50&initialisation=he"


def test_two_processes_to_the_summary_and_two_stopped_while_they_start(server, visit):
    page = opened(visit(), f"{server.url}{ON_TWO}&epochs=2")
    press(page, "Start")
    expect(progress(page)).to_contain_text("starting 2 processes")
    expect(progress(page)).to_contain_text("Finished · epoch 2.00 of 2", timeout=60_000)
    expect(main(page)).to_contain_text("on 2 processes on the CPU")

    press(page, "Start")
    expect(progress(page)).to_contain_text("starting 2 processes")
    press(page, "Stop")
    expect_state(page, "Stopped")
    wait_until(page, lambda: children(server.process.pid) == set())
