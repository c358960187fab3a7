"""The page on splitting a batch in a real browser: rows move, and arrive where they should."""

import re
import xml.etree.ElementTree as ET

import pytest
from playwright.sync_api import expect

from labcore.datasets.fashion_mnist import EMBEDDED
from labcore.splitting import SPLITS, chunk, sampler
from tests.browser.test_allreduce import button, cells, counter, opened, sentence
from tests.browser.test_optimizers import PHONE, main

expect.set_options(timeout=20_000)

PATH = "/split_a_batch"
IN_BOXES = """svg => [...svg.querySelectorAll(".device")].map(box =>
    [...box.querySelectorAll(".token title")].map(title => title.textContent))"""
"""Per box what its rows say of themselves."""


@pytest.fixture(autouse=True, scope="module")
def only_the_sample():
    """The same images on every machine, for the server that starts after this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_DATA_DIR", str(EMBEDDED))
        yield


def figure(page):
    return main(page).locator(".stage svg")


def boxes(page):
    """The rows that lie in each device's box."""
    drawn = figure(page).evaluate(IN_BOXES)
    return [[int(re.match(r"Row (\d+)", title)[1]) for title in box] for box in drawn]


def totals(page):
    return main(page).locator(".totals dd").all_inner_texts()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("rows", "devices"), [(4, 2), (5, 4), (512, 16)])
def test_played_to_the_end_every_row_is_where_it_should_be(visit, server, split, rows, devices):
    url = f"{server.url}{PATH}?split={split}&rows={rows}&devices={devices}"
    page = opened(visit(), url)
    main(page).get_by_label("Speed", exact=True).select_option("16")
    button(page, "▶ Play").click()
    expect(counter(page)).to_have_text(f"Step {devices} of {devices}")
    expect(button(page, "▶ Play")).to_be_visible()
    shards = [list(shard) for shard in SPLITS[split](rows, devices)]
    assert boxes(page) == shards
    sizes = [len(shard) for shard in shards]
    assert totals(page)[:3] == [f"{rows} of {rows}", str(max(sizes)), str(min(sizes))]
    assert cells(page) == [
        [f"({len(shard)}, 3)", ", ".join(map(str, shard)) or "nothing"] for shard in shards
    ]


def test_the_counter_the_sentence_and_the_picture_belong_to_one_device(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=10&devices=4")
    shards = [list(shard) for shard in chunk(10, 4)]
    for rank, shard in enumerate(shards):
        button(page, "One on").click()
        expect(counter(page)).to_have_text(f"Step {rank + 1} of 4")
        assert sentence(page).endswith(f"→ device {rank}: shape ({len(shard)}, 3).")
        assert boxes(page)[: rank + 1] == shards[: rank + 1]
        assert boxes(page)[rank + 1 :] == [[]] * (3 - rank)


def test_the_notes_example_shows_its_numbers(visit, server):
    page = opened(visit(), server.url + PATH)
    button(page, "To the end").click()
    texts = [re.sub(r"\s+", " ", each) for each in figure(page).locator("text").all_text_contents()]
    assert texts.count("9 10 11") == 2
    assert texts.count("→1") == 2


def test_rows_used_twice_are_marked(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=5&devices=4&split=sampler")
    button(page, "To the end").click()
    assert boxes(page) == [list(shard) for shard in sampler(5, 4)]
    assert figure(page).locator(".device .token.again").count() == 3
    assert figure(page).get_by_text("×2").count() == 3


def test_dropped_rows_are_crossed_out_only_at_the_end(visit, server):
    url = f"{server.url}{PATH}?rows=10&devices=4&split=sampler&left_over=drop&at=3"
    page = opened(visit(), url)
    expect(counter(page)).to_have_text("Step 3 of 4")
    assert figure(page).locator(".cross").count() == 0
    button(page, "One on").click()
    assert figure(page).locator(".cross").count() == 2
    assert "Dropped: rows 8, 9" in sentence(page)


def test_images_are_drawn(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?kind=images&rows=64&devices=16")
    button(page, "To the end").click()
    pictures = (
        figure(page)
        .locator(".device image")
        .evaluate_all("all => all.map(each => each.getAttribute('href'))")
    )
    assert len(pictures) == len(set(pictures)) == 64
    assert all(url.startswith("data:image/png;base64,") for url in pictures)


def test_rows_travel_and_land(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=10&devices=2")
    # Of the player, not of its picture, which is made anew where the page finds its width.
    began = (
        main(page)
        .locator(".player")
        .evaluate(
            """player => { player.querySelector("[data-do=forward]").click();
            return player.querySelectorAll(".stage svg > g:last-child > .token").length; }"""
        )
    )
    assert began == 5
    page.wait_for_timeout(700)
    assert figure(page).locator(":scope > g:last-child > .token").count() == 0
    hidden = (
        figure(page)
        .locator(".token")
        .evaluate_all("all => all.filter(each => each.style.visibility === 'hidden').length")
    )
    assert hidden == 0


def test_nothing_travels_for_those_who_do_not_want_it(visit, server):
    page = opened(visit(reduced_motion="reduce"), f"{server.url}{PATH}?rows=10&devices=2")
    # Of the player, not of its picture, which is made anew where the page finds its width.
    began = (
        main(page)
        .locator(".player")
        .evaluate(
            """player => { player.querySelector("[data-do=forward]").click();
            return player.querySelectorAll(".stage svg > g:last-child > .token").length; }"""
        )
    )
    assert began == 0


def test_nothing_jumps(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=10&devices=4&split=sampler")
    places = set()
    for step in range(5):
        main(page).locator(".timeline").fill(str(step))
        expect(counter(page)).to_have_text(f"Step {step} of 4")
        drawn = [main(page).locator(part).bounding_box() for part in (".bar", ".stage", ".totals")]
        places.add(tuple((box["y"], box["height"]) for box in drawn))
    assert len(places) == 1


def test_a_guess_is_compared_with_the_shard(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=10&devices=4")
    main(page).get_by_text("Predict").click()
    for guess, verdict in (("3", "Right: 3."), ("2", "You said 2; it is 3.")):
        button(page, "One on").click()
        assert "How many rows does device" in sentence(page)
        main(page).locator(".ask input").fill(guess)
        page.keyboard.press("Enter")
        assert sentence(page).startswith(verdict)


def test_keys_step_and_jump(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=5&devices=4")
    main(page).locator(".stage").focus()
    for key, step in (("ArrowRight", 1), ("End", 4), ("ArrowLeft", 3), ("Home", 0)):
        page.keyboard.press(key)
        expect(counter(page)).to_have_text(f"Step {step} of 4")


def test_where_one_rests_is_in_the_link(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?rows=9&devices=3")
    button(page, "One on").click()
    button(page, "One on").click()
    page.wait_for_url(re.compile(r"[?&]at=2\b"))
    other = opened(visit(), page.url)
    expect(counter(other)).to_have_text("Step 2 of 3")
    assert boxes(other) == [[0, 1, 2], [3, 4, 5], []]


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_the_picture_can_be_saved(visit, server, kind, tmp_path):
    page = opened(visit(), f"{server.url}{PATH}?kind=images&rows=8&devices=4&at=1")
    expect(counter(page)).to_have_text("Step 1 of 4")
    with page.expect_download() as download:
        button(page, kind).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == f"split-chunk-8-4-1.{kind.lower()}"
    if kind == "PNG":
        assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(file.read_bytes()) > 5000
    else:
        drawn = ET.parse(file).getroot()
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}image"))) == 8 + 2


@pytest.mark.parametrize("query", ["", "rows=512&devices=16", "kind=images&rows=64&devices=16"])
def test_nothing_is_wider_than_a_phone(visit, server, query):
    page = opened(visit(**PHONE), f"{server.url}{PATH}?{query}")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    drawn = figure(page).bounding_box()
    assert drawn["x"] >= 0
    assert drawn["x"] + drawn["width"] <= PHONE["viewport"]["width"]


@pytest.mark.parametrize("query", ["", "rows=512&devices=16", "kind=images&rows=64&devices=16"])
@pytest.mark.parametrize("window", [{"viewport": {"width": 1280, "height": 800}}, PHONE], ids=str)
def test_rows_and_boxes_stay_inside_the_picture(visit, server, query, window):
    page = opened(visit(**window), f"{server.url}{PATH}?{query}")
    button(page, "To the end").click()
    outside = figure(page).evaluate(
        """svg => { const own = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text, rect, image")].filter(each => {
                const box = each.getBoundingClientRect();
                return box.left < own.left - 1 || box.right > own.right + 1
                    || box.top < own.top - 1 || box.bottom > own.bottom + 1;
            }).map(each => each.outerHTML); }"""
    )
    assert outside == []


def test_the_figure_is_in_view_on_a_laptop(visit, server):
    window = visit(viewport={"width": 1280, "height": 800})
    page = opened(window, f"{server.url}{PATH}?rows=512&devices=16")
    box = main(page).locator(".totals").bounding_box()
    assert box["y"] + box["height"] <= 800


def test_the_page_reports_no_error(visit, server):
    window = visit()
    page = opened(window, f"{server.url}{PATH}?rows=5&devices=4")
    button(page, "To the end").click()
    expect(counter(page)).to_have_text("Step 4 of 4")
    assert [error for error in window.errors if "404" not in error] == []
