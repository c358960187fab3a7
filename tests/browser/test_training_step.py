"""The Training step page in a real browser: moves, steps, surprises, files, and a shared link."""

import re
import xml.etree.ElementTree as ET

import pytest
from playwright.sync_api import expect

from labcore.bugs import BUGS
from labcore.step_record import MOVES
from labcore.training_step import Trainer, TrainingStepConfig
from labui.step_form import SURPRISE, StepSettings
from tests.browser.test_allreduce import button, counter, opened, sentence
from tests.browser.test_optimizers import PHONE, main

expect.set_options(timeout=20_000)

PATH = "/training_step"
SMALL = "replicas=3&batch_size=7"


def number(text):
    return float(text.replace("−", "-"))


def table(page):
    """The table under the picture: texts of every line."""
    if not main(page).locator(".player details").first.evaluate("(details) => details.open"):
        main(page).get_by_text("This picture as a table").click()
        main(page).locator(".table tr").first.wait_for()
    lines = main(page).locator(".table tr").all()[1:]
    return [line.locator("th, td").all_inner_texts() for line in lines]


def totals(page):
    names = main(page).locator(".totals dt").all_inner_texts()
    return dict(zip(names, main(page).locator(".totals dd").all_inner_texts(), strict=True))


@pytest.mark.parametrize("bug", ["none", *BUGS])
def test_played_to_the_end_the_page_shows_what_the_core_has(visit, server, bug):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}&bug={bug}")
    record = Trainer(TrainingStepConfig(replicas=3, batch_size=7, bug=bug)).step()
    main(page).get_by_label("Speed").select_option("16")
    button(page, "▶ Play").click()
    expect(counter(page)).to_have_text("Move 6 of 6")
    expect(button(page, "▶ Play")).to_be_visible()
    assert sentence(page) == record.moves[-1].sentence
    after = [
        line for line in table(page) if re.fullmatch(r"R\d b1", line[0]) and line[1] != "before"
    ]
    for line, view in zip(after, record.states[-1].parameters, strict=True):
        assert list(map(number, line[3:])) == pytest.approx(view.values[0], rel=6e-3, abs=1e-12)
    shown = totals(page)
    assert number(shown["drift between replicas"]) == pytest.approx(record.facts.drift, rel=5e-3)
    assert number(shown["difference to one device"]) == pytest.approx(
        max(record.facts.differences), rel=5e-3
    )


def test_counter_sentence_and_picture_belong_to_one_move(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}")
    record = Trainer(TrainingStepConfig(replicas=3, batch_size=7)).step()
    for place, move in enumerate(record.moves, start=1):
        button(page, "One on").click()
        expect(counter(page)).to_have_text(f"Move {place} of {len(MOVES)}")
        assert sentence(page) == move.sentence
        changed = sum(
            old != new
            for before, after in (
                (move.before.parameters, move.after.parameters),
                (move.before.gradients, move.after.gradients),
            )
            for old, new in zip(before, after, strict=True)
        )
        assert main(page).locator(".map.changed").count() == changed
        missing = [each for each in move.after.gradients if each is None]
        assert main(page).locator(".card .map .word").count() == len(missing)


def test_keys_step_and_jump(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}")
    main(page).locator(".stage").focus()
    for key, place in (("ArrowRight", 1), ("End", 6), ("ArrowLeft", 5), ("Home", 0)):
        page.keyboard.press(key)
        expect(counter(page)).to_have_text(f"Move {place} of 6")


def test_next_step_and_where_one_rests_are_in_the_link(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}")
    button(page, "Next step").click()
    page.wait_for_url(re.compile(r"[?&]step=2\b"))
    button(page, "To the end").click()
    page.wait_for_url(re.compile(r"[?&]at=6\b"))
    trainer = Trainer(TrainingStepConfig(replicas=3, batch_size=7))
    trainer.advance()
    assert sentence(page) == trainer.step().moves[-1].sentence
    other = opened(visit(), page.url)
    expect(counter(other)).to_have_text("Move 6 of 6")
    assert sentence(other) == sentence(page)


def test_a_surprise_is_named_and_revealed(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}&bug={SURPRISE}&seed=1&at=6")
    expect(main(page).get_by_text("hidden until you have named the bug")).to_be_visible()
    button(page, "Reveal").click()
    truth = StepSettings(replicas=3, batch_size=7, bug=SURPRISE, seed=1).config().bug
    label = BUGS[truth].label if truth in BUGS else "no bug"
    expect(main(page).get_by_text(f"It is: {label}.")).to_be_visible()
    expect(main(page).get_by_test_id("stCode").first).to_be_visible()


def test_the_rounds_of_the_allreduce_can_be_opened(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}&allreduce=ring")
    main(page).get_by_text("Open the allreduce's rounds").click()
    expect(main(page).get_by_text("Round 0 of 4")).to_be_visible()


def test_the_rounds_of_a_mistake_in_them_are_a_table(visit, server):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}&bug=aliased")
    main(page).get_by_text("Open the allreduce's rounds").click()
    expect(main(page).get_by_test_id("stDataFrame")).to_be_visible()


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_the_picture_can_be_saved(visit, server, kind, tmp_path):
    page = opened(visit(), f"{server.url}{PATH}?{SMALL}&at=4")
    with page.expect_download() as download:
        button(page, kind).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == f"training-step-1-b1-4.{kind.lower()}"
    if kind == "PNG":
        assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(file.read_bytes()) > 5000
    else:
        drawn = ET.parse(file).getroot()
        name = "{http://www.w3.org/2000/svg}"
        texts = [each.text for each in drawn.iter(f"{name}text")]
        assert {"Replica 0", "Replica 2", "gradient"} <= set(texts)
        assert len(list(drawn.iter(f"{name}image"))) == 6


@pytest.mark.parametrize("query", ["replicas=1", "replicas=4", "replicas=16&parameter=w2"])
def test_nothing_is_wider_than_a_phone(visit, server, query):
    page = opened(visit(**PHONE), f"{server.url}{PATH}?{query}")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    stage = main(page).locator(".stage svg").bounding_box()
    assert stage["x"] >= 0
    assert stage["x"] + stage["width"] <= PHONE["viewport"]["width"]


@pytest.mark.parametrize("query", ["replicas=4", "replicas=16&parameter=w2", "replicas=8"])
def test_the_figure_is_in_view_on_a_projector(visit, server, query):
    page = opened(visit(viewport={"width": 1280, "height": 800}), f"{server.url}{PATH}?{query}")
    figures = main(page).locator(".totals").bounding_box()
    assert figures["y"] + figures["height"] <= 800


def test_nothing_fades_for_those_who_do_not_want_it(visit, server):
    page = opened(visit(reduced_motion="reduce"), f"{server.url}{PATH}?{SMALL}")
    button(page, "One on").click()
    assert (
        main(page)
        .locator(".stage svg")
        .evaluate("(svg) => svg.getAnimations({subtree: true}).length")
        == 0
    )


def test_the_page_reports_no_error(visit, server):
    window = visit()
    page = opened(window, f"{server.url}{PATH}?{SMALL}")
    button(page, "To the end").click()
    button(page, "Next step").click()
    page.wait_for_url(re.compile(r"[?&]step=2\b"))
    assert [error for error in window.errors if "404" not in error] == []
