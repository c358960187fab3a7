"""The Optimizers page in a real browser: what a teacher and a class do with it."""

import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from labcore.optimizers import Adam
from labcore.race import RaceConfig, Racer
from labcore.regression import train_regression
from labcore.reported import AIRFOIL_PRESETS

expect.set_options(timeout=20_000)

PATH = "/optimizers"
LONG = f"{PATH}?racer=sgd&engine=from+scratch&epochs=10000"
"""A race that no test waits for."""

CURVES = """() => Object.fromEntries(
    [...document.querySelectorAll("[data-testid=stVegaLiteChart] .mark-line path")].map(
        path => [path.getAttribute("aria-label").split("racer: ")[1],
                 path.getAttribute("d").match(/[ML]/g).length]))"""
"""By racer, how many points its curve in the picture has."""


def main(page):
    """The page without Streamlit's header, which has a Stop of its own."""
    return page.get_by_test_id("stMain")


def button(page, label):
    return main(page).get_by_role("button", name=label)


def press(page, label):
    button(page, label).click()


def choose(page, option):
    main(page).get_by_role("radio", name=option, exact=True).click()


def progress(page):
    return page.get_by_test_id("stProgress")


def expect_state(page, state):
    expect(progress(page)).to_contain_text(re.compile(rf"^\s*{state}\b"))


def step(page):
    words = re.search(r"step ([\d,]+) of", progress(page).inner_text())
    return int(words[1].replace(",", "")) if words else 0


def wait_until(page, is_so, seconds=20):
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"Still {progress(page).inner_text()!r}."
        page.wait_for_timeout(100)


def expect_moving(page):
    expect_state(page, "Running")
    before = step(page)
    wait_until(page, lambda: step(page) > before)


def expect_still(page):
    before = progress(page).inner_text(), page.evaluate(CURVES)
    page.wait_for_timeout(1200)
    assert (progress(page).inner_text(), page.evaluate(CURVES)) == before


def opened(window, url):
    window.page.goto(url)
    button(window.page, "Start").wait_for()
    return window.page


def go_to(page, title):
    page.get_by_test_id("stSidebar").get_by_role("link", name=title).click()


def racers(page):
    return [each.input_value() for each in page.get_by_role("combobox", name="Racer").all()]


# --- the whole story ------------------------------------------------------------------------------


def test_five_presets_race_pause_wait_for_a_return_and_stop(server, visit):
    window = visit()
    page = window.page
    page.goto(server.url)
    go_to(page, "Optimizers")
    press(page, "All five")
    choose(page, "20/s")  # slow enough for the slowest machine to pause it in time
    press(page, "Start")

    names = {optimizer.label for optimizer in AIRFOIL_PRESETS}
    wait_until(page, lambda: page.evaluate(CURVES).keys() == names)
    early = page.evaluate(CURVES)
    wait_until(page, lambda: all(page.evaluate(CURVES)[name] > early[name] for name in names))

    press(page, "Pause")
    expect_state(page, "Paused")
    expect_still(page)
    held = step(page)

    go_to(page, "Home")
    page.get_by_text("This machine").wait_for()
    go_to(page, "Optimizers")
    expect_state(page, "Paused")
    assert step(page) == held

    press(page, "Resume")
    expect_moving(page)
    press(page, "Stop")
    expect_state(page, "Stopped")
    expect_still(page)
    assert window.errors == []


def test_preset_ends_at_the_loss_that_labcore_computes(server, visit):
    *_, finished = train_regression(RaceConfig(racers=(Racer(Adam()),)).run_of(Racer(Adam())))
    page = opened(visit(), server.url + PATH)
    main(page).get_by_role("button", name="Adam", exact=True).click()
    choose(page, "Full speed")
    press(page, "Start")
    expect_state(page, "Finished")
    loss = page.locator("table.standings tbody td").first
    expect(loss).to_have_text(f"{finished.loss:.4f}")


# --- links and reloads ----------------------------------------------------------------------------

LINK = (
    f"{PATH}?racer=nesterov,lr=0.002,momentum=0.8,name=Mine&racer=adamw"
    "&batch_size=32&epochs=3&seed=7&objective=half_mse&pace=20&x=steps"
)


def expect_link_restored(page):
    expect(page.get_by_role("spinbutton", name="Batch size")).to_have_value("32")
    assert racers(page) == ["Nesterov", "AdamW"]
    values = [each.input_value() for each in page.get_by_role("textbox", name="Name").all()]
    assert values == ["Mine", ""]
    for option in ("½ MSE", "20/s", "Steps"):
        expect(main(page).get_by_role("radio", name=option, exact=True)).to_be_checked()


def test_link_right_after_the_server_started_restores_the_race(fresh_server, visit):
    expect_link_restored(opened(visit(), fresh_server.url + LINK))


def test_reload_keeps_the_race_that_was_set_up(server, visit):
    page = opened(visit(), server.url + LINK)
    page.get_by_role("spinbutton", name="Epochs").fill("5")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("epochs=5"))
    page.reload()
    button(page, "Start").wait_for()
    expect_link_restored(page)
    expect(page.get_by_role("spinbutton", name="Epochs")).to_have_value("5")


def test_reload_in_mid_race_offers_a_new_start(server, visit):
    page = opened(visit(), server.url + LONG)
    press(page, "Start")
    expect_moving(page)
    page.reload()
    expect_state(page, "Ready")
    press(page, "Start")
    expect_moving(page)


def test_wrong_link_gives_a_notice_that_can_be_seen(server, visit):
    page = opened(visit(), f"{server.url}{PATH}?racer=sgd,lr=0&batch_size=abc")
    notices = page.get_by_test_id("stAlert")
    expect(notices).to_have_count(3)
    expect(notices.nth(1)).to_contain_text("the five of the notes race instead")
    expect(notices.nth(2)).to_contain_text("received 'abc'")
    expect(notices.first).to_be_in_viewport()


def test_what_is_typed_reaches_the_url(server, visit):
    page = opened(visit(), f"{server.url}{PATH}?racer=sgd")
    page.get_by_role("textbox", name="Learning rate").fill("0,02")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("0.02"))
    assert parse_qs(urlsplit(page.url).query)["racer"] == ["sgd,lr=0.02"]


# --- presses and changes in mid race --------------------------------------------------------------


def test_start_clicked_twice_quickly_starts_one_race(server, visit):
    page = opened(visit(), f"{server.url}{LONG}&pace=20")
    button(page, "Start").dblclick()
    expect_moving(page)
    seen = [step(page)]
    for _ in range(10):
        page.wait_for_timeout(200)
        seen.append(step(page))
    assert seen == sorted(seen), "a second race began from step 0"


def test_start_with_a_value_just_typed_takes_it(server, visit):
    page = opened(visit(), f"{server.url}{PATH}?racer=sgd&pace=max&engine=from+scratch")
    page.get_by_role("textbox", name="Learning rate").fill("0.03")
    press(page, "Start")
    expect_state(page, "Finished")
    expect(page.locator("table.standings tbody th")).to_contain_text("lr 0.03")


def test_one_step_at_a_time(server, visit):
    page = opened(visit(), server.url + LONG)
    for taken in (1, 2, 3):
        press(page, "Step")
        expect(progress(page)).to_contain_text(f"Paused · step {taken} of")


def change_four_things(page):
    choose(page, "Automatic")
    choose(page, "Steps")
    press(page, "Add a racer")
    page.get_by_role("spinbutton", name="Batch size").fill("100")
    page.keyboard.press("Enter")


def test_race_goes_on_while_widgets_change(server, visit):
    page = opened(visit(), f"{server.url}{LONG}&pace=20")
    press(page, "Start")
    expect_moving(page)
    before = step(page)
    change_four_things(page)
    page.get_by_text("count from the next start").wait_for()
    expect_moving(page)
    assert step(page) > before


@pytest.mark.parametrize("axis", ["Automatic", "0.22–0.35"])
def test_every_curve_is_drawn_on_another_axis(server, visit, axis):
    page = opened(visit(), f"{server.url}{LONG}&pace=20")
    press(page, "Start")
    wait_until(page, lambda: page.evaluate(CURVES))
    before = page.evaluate(CURVES)
    choose(page, axis)
    page.locator("svg.marks").get_by_text("exact minimum 0.2417 (closed form)").wait_for()
    wait_until(page, lambda: page.evaluate(CURVES).keys() == before.keys())
    choose(page, "Above minimum")
    wait_until(page, lambda: page.evaluate(CURVES).keys() == before.keys())


def test_changes_in_quick_succession_are_all_kept(server, visit):
    page = opened(visit(), f"{server.url}{LONG}&pace=20")
    press(page, "Start")
    expect_moving(page)
    change_four_things(page)
    for option in ("Automatic", "Steps"):
        expect(main(page).get_by_role("radio", name=option, exact=True)).to_be_checked()
    expect(page.get_by_role("combobox", name="Racer")).to_have_count(2)
    page.wait_for_url(re.compile("batch_size=100&.*y=auto&x=steps"))


def test_race_goes_on_on_another_page(server, visit):
    page = opened(visit(), f"{server.url}{LONG}&pace=100")
    press(page, "Start")
    expect_moving(page)
    before = step(page)
    go_to(page, "Home")
    page.get_by_text("This machine").wait_for()
    page.wait_for_timeout(1000)
    go_to(page, "Optimizers")
    expect_moving(page)
    assert step(page) > before + 80


# --- everybody can use it -------------------------------------------------------------------------


def test_keyboard_alone_starts_a_race(server, visit):
    page = opened(visit(), server.url + LONG)
    for _ in range(40):
        page.keyboard.press("Tab")
        if "Start" in page.evaluate("document.activeElement.closest('button')?.innerText ?? ''"):
            break
    page.keyboard.press("Enter")
    expect_moving(page)


def test_chart_has_a_description_for_screen_readers(server, visit):
    page = opened(visit(), server.url + PATH)
    chart = page.get_by_test_id("stVegaLiteChart")
    expect(chart).to_have_attribute("aria-label", re.compile(r"^Line chart: .*SGD.*Adam\.$"))


PHONE = {"viewport": {"width": 390, "height": 844}}


def test_phone_need_not_scroll_sideways(server, visit):
    page = opened(visit(**PHONE), server.url + PATH)
    page.get_by_test_id("stVegaLiteChart").locator("svg").wait_for()
    for box in ("document.documentElement", "document.querySelector('[data-testid=stMain]')"):
        assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0


def test_table_has_three_columns_on_a_phone(server, visit):
    page = opened(visit(**PHONE), server.url + PATH)
    heads = page.locator("table.standings thead th")
    heads.first.wait_for()
    shown = [each.inner_text() for each in heads.all() if each.is_visible()]
    assert shown == ["run", "loss now", "above minimum"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_draws_a_race_without_an_error(server, visit, theme):
    window = visit(color_scheme=theme)
    window.page.goto(server.url)
    go_to(window.page, "Optimizers")
    press(window.page, "Step")
    expect_state(window.page, "Paused")
    window.page.get_by_test_id("stVegaLiteChart").locator("svg").wait_for()
    assert window.errors == []


# --- a network that fails -------------------------------------------------------------------------


def test_race_survives_a_network_that_is_gone_for_three_seconds(server, visit, proxy):
    page = opened(visit(), f"{proxy.url}{LONG}&pace=20")
    press(page, "Start")
    expect_moving(page)
    before = step(page)
    proxy.cut()
    page.wait_for_timeout(3000)
    proxy.mend()
    wait_until(page, lambda: step(page) > before + 50)
    expect_moving(page)


def load_of(server):
    """The share of one core that the server uses, over two seconds."""
    before = server.cpu_seconds()
    time.sleep(2)
    return (server.cpu_seconds() - before) / 2


def test_race_of_a_closed_browser_ends_within_thirty_seconds(server, visit):
    page = opened(visit(), f"{server.url}{LONG}&pace=max")
    press(page, "Start")
    expect_moving(page)
    page.close()
    closed = time.monotonic()
    assert load_of(server) > 0.1, "A closed window may be a reload: the race should go on a while."
    while load_of(server) > 0.05:
        assert time.monotonic() - closed < 28, "The race still runs without anybody to see it."
