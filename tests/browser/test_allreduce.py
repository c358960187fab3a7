"""The Allreduce page in a real browser: steps, keys, guesses, files, and a link that is shared."""

import re
import xml.etree.ElementTree as ET

import pytest
from playwright.sync_api import expect

from labcore.collectives import ALLREDUCE
from labcore.trace import trace
from labcore.vectors import rank_plus_one
from tests.browser.test_optimizers import PHONE, main

expect.set_options(timeout=20_000)

PATH = "/allreduce"


def opened(window, url):
    window.page.goto(url)
    button(window.page, "One on").wait_for()
    main(window.page).locator(".stage svg").wait_for()
    return window.page


def button(page, label):
    return main(page).get_by_role("button", name=label, exact=True)


def counter(page):
    return main(page).locator(".counter")


def sentence(page):
    return main(page).locator(".sentence").inner_text()


def cells(page):
    """The table under the picture without its head: the texts of each row's cells."""
    main(page).get_by_text("This picture as a table").click()
    main(page).locator(".table td").first.wait_for()
    rows = main(page).locator(".table tr").all()
    return [row.locator("td").all_inner_texts() for row in rows[1:]]


@pytest.mark.parametrize("algorithm", ALLREDUCE)
def test_played_to_the_end_every_rank_has_the_sum(visit, server, algorithm):
    page = opened(visit(), f"{server.url}{PATH}?algorithm={algorithm}&ranks=3&length=3")
    rounds = len(ALLREDUCE[algorithm](3).rounds)
    main(page).get_by_label("Speed").select_option("16")
    button(page, "▶ Play").click()
    expect(counter(page)).to_have_text(f"Round {rounds} of {rounds}")
    expect(button(page, "▶ Play")).to_be_visible()
    for row in cells(page):
        for text in row:
            assert re.fullmatch(r"(6(, 6)*|empty) \(3/3\)", text)


def test_the_counter_the_sentence_and_the_picture_belong_to_one_round(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?algorithm=ring&ranks=4&length=4")
    told = trace(ALLREDUCE["ring"](4), rank_plus_one(4, 4))
    held = {(c.rank, c.chunk): c for c in told.start}
    main(page).get_by_text("This picture as a table").click()
    main(page).locator(".table td").first.wait_for()
    for number, frame in enumerate(told.frames, start=1):
        button(page, "One on").click()
        held |= {(c.rank, c.chunk): c for c in frame.cells}
        expect(counter(page)).to_have_text(f"Round {number} of {len(told.frames)}")
        assert sentence(page) == frame.sentence
        shown = main(page).locator(".table td").all_inner_texts()
        assert shown == [
            f"{held[r, c].values[0]:g} ({held[r, c].count}/4)" for r in range(4) for c in range(4)
        ]
        drawn = main(page).locator(".cell.done").count()
        assert drawn == sum(cell.count == 4 for cell in held.values())


def test_keys_step_play_and_jump(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?ranks=4")
    main(page).locator(".stage").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(counter(page)).to_have_text("Round 1 of 6")
    page.keyboard.press("End")
    expect(counter(page)).to_have_text("Round 6 of 6")
    page.keyboard.press("Home")
    expect(counter(page)).to_have_text("Round 0 of 6")
    page.keyboard.press("Space")
    expect(button(page, "⏸ Pause")).to_be_visible()
    page.keyboard.press("Space")
    expect(button(page, "▶ Play")).to_be_visible()


def test_stepping_is_quick_and_asks_nothing_of_the_server(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?ranks=16&length=16")
    page.wait_for_timeout(1500)
    used = server.cpu_seconds()
    seconds = (
        main(page)
        .locator("[data-do=forward]")
        .evaluate("""(button) => {
        const began = performance.now();
        for (let i = 0; i < 20; i += 1) button.click();
        return (performance.now() - began) / 1000 / 20;
    }""")
    )
    assert server.cpu_seconds() - used < 0.2
    expect(counter(page)).to_have_text("Round 20 of 30")
    assert seconds < 0.2


def test_where_one_rests_is_in_the_link(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?ranks=4&algorithm=tree")
    button(page, "One on").click()
    button(page, "One on").click()
    page.wait_for_url(re.compile(r"[?&]at=2\b"))
    shared = page.url
    other = opened(visit(), shared)
    expect(counter(other)).to_have_text("Round 2 of 4")
    assert sentence(other) == sentence(page)


def test_another_setting_begins_at_the_start(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?ranks=4&at=3")
    expect(counter(page)).to_have_text("Round 3 of 6")
    main(page).get_by_role("radio", name="tree", exact=True).click()
    expect(counter(page)).to_have_text("Round 0 of 4")


def test_a_guess_is_compared_with_what_happens(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?ranks=4")
    main(page).get_by_text("Predict").click()
    for guess, verdict in (("2", "Right: 2."), ("7", "You said 7; it is 3.")):
        button(page, "One on").click()
        assert "How many of the 4 ranks’ parts" in sentence(page)
        main(page).locator(".ask input").fill(guess)
        page.keyboard.press("Enter")
        assert sentence(page).startswith(verdict)
    expect(counter(page)).to_have_text("Round 2 of 6")


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_the_picture_can_be_saved(visit, server, kind, tmp_path):
    page = opened(visit(), f"{server.url}{PATH}?ranks=4&length=4&at=1")
    with page.expect_download() as download:
        button(page, kind).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == f"allreduce-ring-4-1.{kind.lower()}"
    if kind == "PNG":
        assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(file.read_bytes()) > 5000
    else:
        drawn = ET.parse(file).getroot()
        texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert {"R0", "R3", "2/4"} <= set(texts)


@pytest.mark.parametrize("ranks", [1, 4, 16])
def test_nothing_is_wider_than_a_phone(visit, server, ranks):
    page = opened(visit(**PHONE), f"{server.url}{PATH}?ranks={ranks}&length={ranks}")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    stage = main(page).locator(".stage svg").bounding_box()
    assert stage["x"] >= 0
    assert stage["x"] + stage["width"] <= PHONE["viewport"]["width"]


def test_nothing_travels_for_those_who_do_not_want_it(visit, server):
    window = visit(reduced_motion="reduce")
    page = opened(window, f"{server.url}{PATH}?ranks=4")
    button(page, "One on").click()
    assert main(page).locator(".dot").count() == 0


def test_real_processes_give_what_the_picture_shows(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?ranks=2&length=4")
    button(page, "Run").click()
    figure = main(page).get_by_test_id("stMetric").filter(has_text="largest difference")
    expect(figure).to_contain_text("0", timeout=60_000)


def test_the_page_reports_no_error(visit, server):
    window = visit()
    page = opened(window, f"{server.url}{PATH}")
    button(page, "To the end").click()
    expect(counter(page)).to_have_text("Round 6 of 6")
    assert [error for error in window.errors if "404" not in error] == []
