"""The Scaling page as a script, without a browser: its four parts, and what they survive."""

import json
from urllib.parse import parse_qsl

import pytest

from labcore import exports
from labcore.config import format_fields
from labcore.exercises import EXERCISES, LARGE_BATCHES
from labcore.findings import findings
from labcore.reported import FASHION_MNIST_RUNS
from labcore.scaling import curve, summary
from labcore.scaling_config import PRESETS, ScalingConfig
from labcore.seeds import SeedsConfig
from labcore.uneven import UnevenConfig, Worker, sum_up
from labui.scaling_form import UNEVEN_PRESETS, Listed, parse_listed
from tests.test_pages import (
    button,
    elements,
    errors,
    notices,
    number_field,
    press,
    progress,
    rerun_until,
    unescaped,
)

PAGE = "pages/scaling.py"
QUICK = {"share_batch": "24", "share_devices": "2", "worker": ["1000,1,in,a", "500,1,in,b"]}


def said(app):
    """All that the page says in Markdown."""
    return "\n".join(unescaped(each.value) for each in app.markdown)


def descriptions(app):
    return [json.loads(c.proto.spec)["description"] for c in app.get("vega_lite_chart")]


def link(app, name):
    """What the URL holds under a name, as a list."""
    values = app.query_params[name]
    return [values] if isinstance(values, str) else values


def settled(app, job):
    """The page when the job of that name has ended."""
    assert app.session_state[f"job:{job}"].wait(60)
    return app.run()


# --- what if --------------------------------------------------------------------------------------


def test_what_if_sums_up_what_the_core_computes(visit):
    app = visit(PAGE, model="lenet", devices="12", per_machine="16")
    assert not errors(app)
    config = ScalingConfig(model="lenet", devices=12, per_machine=16)
    assert summary(config, curve(config)) in said(app)
    assert len(descriptions(app)) == 3


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_shows_why(visit, name):
    app = press(visit(PAGE), name)
    why, config = PRESETS[name]
    assert summary(config, curve(config)) in said(app)
    assert why in [each.value for each in app.caption]


def test_the_presets_differ_in_what_more_devices_gain():
    gains = {}
    for name in ("LeNet on 16", "ResNet-18 on 16"):
        config = PRESETS[name][1]
        [gains[name]] = [p.speed_up for p in curve(config) if p.step.devices == 16]
    assert gains["LeNet on 16"] < 1.5
    assert gains["ResNet-18 on 16"] > 5


def test_the_url_says_everything(visit):
    app = visit(PAGE, model="lenet", devices="3", growth="weak", inside="typed", part="what_if")
    names = ("model", "devices", "growth", "inside", "part")
    assert [link(app, name) for name in names] == [
        ["lenet"],
        ["3"],
        ["weak"],
        ["typed"],
        ["what_if"],
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"devices": "0"}, "devices must be a whole number from 1 to 1024; received '0'"),
        ({"devices": "1025"}, "devices must be a whole number from 1 to 1024"),
        ({"inside_latency": "-1"}, "inside_latency must be a number from 0 to"),
        ({"speed": "0"}, "speed must be a number from 0.001 to"),
        ({"bucket": "1000000000"}, "bucket must be a number from 0.001 to 10000"),
        ({"batch_size": "1000000000"}, "batch_size must be a whole number from 1 to 1000000"),
        ({"worker": "0"}, "speed must be a number from 0.001 to 1e+09; received '0'"),
        ({"worker": "1000,-1"}, "fixed_ms must be a number from 0 to"),
        ({"share_devices": "9"}, "share_devices must be a whole number from 2 to 8"),
        ({"nonsense": "1"}, "'nonsense' is unknown"),
    ],
)
def test_a_link_with_a_bad_setting_says_so_and_shows_the_default(visit, query, message):
    app = visit(PAGE, **query)
    assert any(message in notice for notice in notices(app))
    assert summary(ScalingConfig(), curve(ScalingConfig())) in said(app)


def test_fewer_images_than_devices_are_refused_and_the_picture_stays(visit):
    app = visit(PAGE, devices="16")
    before = said(app)
    number_field(app, "Batch size").set_value(8).run()
    [message] = errors(app)
    assert "received 16 devices for 8 rows. Try batch size 16 or 8 devices" in message
    assert said(app) == before
    number_field(app, "Batch size").set_value(64).run()
    assert not errors(app)
    assert "4 images per device" in said(app)


def test_a_refused_number_stays_in_its_field_beside_the_reason(visit):
    app = visit(PAGE)
    number_field(app, "Devices").set_value(0).run()
    assert any("devices must be a whole number from 1 to 1024" in each for each in errors(app))
    assert "16 × V100" in said(app)


def test_a_measurement_takes_the_place_of_a_listed_device(visit):
    app = press(visit(PAGE, model="lenet"), "Measure here")
    app = settled(app, "measure")
    assert not errors(app)
    assert "Measured here, LeNet: fixed cost" in said(app)
    assert "16 × V100" in said(app)
    app = press(app, "Use it for the picture")
    assert "16 × device as measured here train LeNet" in said(app)
    assert link(app, "device") == ["measured"]


# --- uneven devices -------------------------------------------------------------------------------


def test_uneven_devices_are_summed_up_as_the_core_does(visit):
    app = visit(PAGE, part="uneven", share_batch="100", share_devices="2", worker=["30,0", "10,0"])
    workers = (Worker(speed=30.0, fixed_ms=0.0), Worker(speed=10.0, fixed_ms=0.0))
    assert sum_up(UnevenConfig(batch_size=100, workers=workers)) in said(app)
    assert "shares of 75, 25 images" in said(app)


@pytest.mark.parametrize("name", UNEVEN_PRESETS)
def test_an_example_of_uneven_devices_is_one_click_away(visit, name):
    app = press(visit(PAGE, part="uneven"), name)
    assert not errors(app)
    settings, make = UNEVEN_PRESETS[name]
    assert len(app.select_slider) == len(make())
    assert link(app, "share_batch") == [str(settings["share_batch"])]


def test_a_slow_cpu_does_not_pay_beside_a_gpu(visit):
    app = press(visit(PAGE, part="uneven"), "GPU + CPU")
    assert "Does CPU pay?** It does not pay" in said(app)


def test_a_slider_changes_the_shares_and_the_url(visit):
    app = visit(PAGE, part="uneven")
    app.select_slider[2].set_value(100.0).run()
    assert link(app, "worker")[2] == "100,1,in,device 2"
    assert "shares of 61, 61, 6 images" in said(app)


def test_a_device_that_is_left_out_has_no_share(visit):
    app = visit(PAGE, part="uneven")
    app.toggle[2].set_value(False).run()
    assert "shares of 64, 64 images" in said(app)


def test_with_all_devices_left_out_the_reason_is_said_and_the_bars_stay(visit):
    app = visit(PAGE, part="uneven", share_devices="2", worker=["30,0,in", "10,0,in"])
    app.toggle[0].set_value(False).run()
    before = descriptions(app)
    app.toggle[1].set_value(False).run()
    [message] = errors(app)
    assert "all of them are left out" in message
    assert descriptions(app) == before
    app.toggle[1].set_value(True).run()
    assert not errors(app)


def test_a_device_beyond_the_number_comes_back_as_it_was(visit):
    app = visit(PAGE, part="uneven", share_devices="2", worker=["30,0", "10,0"])
    number_field(app, "Devices").set_value(3).run()
    app.select_slider[2].set_value(500.0).run()
    number_field(app, "Devices").set_value(2).run()
    number_field(app, "Devices").set_value(3).run()
    assert app.select_slider[2].value == 500.0


@pytest.mark.parametrize("listed", [Listed("a, b", 12.5, 0.25, used=False), Listed("x", 1.0)])
def test_a_listed_device_reads_back_from_a_link(listed):
    assert parse_listed(str(listed), 0) == listed


def test_run_here_shows_predicted_beside_measured(visit):
    app = settled(press(visit(PAGE, part="uneven", **QUICK), "Run it"), "slowed")
    assert not errors(app)
    assert app.session_state["job:slowed"].state == "finished"
    assert "**Predicted from the speed here**" in said(app)
    assert "**Measured here**" in said(app)
    assert "at most: rounding" in said(app)
    ends = [each.rpartition(", ")[2] for each in descriptions(app)]
    assert ends == ["modelled.", "predicted from the speed here.", "measured here."]


def test_a_run_that_is_stopped_ends(visit):
    app = press(visit(PAGE, part="uneven", **QUICK | {"share_batch": "4096"}), "Run it")
    app = press(app, "Stop")
    assert app.session_state["job:slowed"].wait(20)
    assert app.session_state["job:slowed"].state == "stopped"
    assert progress(app).startswith("Stopped")
    assert not button(app, "Run it").disabled


def test_devices_that_are_too_uneven_are_not_run(visit):
    app = press(visit(PAGE, part="uneven"), "GPU + CPU")
    assert button(app, "Run it").disabled
    assert any("numbers from 1 to 20" in unescaped(each.value) for each in app.info)


# --- the notes' table -----------------------------------------------------------------------------


def test_the_table_is_labelled_as_reported(visit):
    app = visit(PAGE, part="reported")
    assert "**Reported by the notes**" in said(app)
    assert all("none of it is measured here" in each for each in descriptions(app))
    table = app.dataframe[0].value
    assert table["test accuracy, reported"].tolist() == [r.accuracy for r in FASHION_MNIST_RUNS]


def test_all_that_is_odd_is_pointed_out_with_its_rows(visit):
    text = said(visit(PAGE, part="reported"))
    for found in findings():
        assert found.words in text
    assert "More GPUs, and slower** · rows 4, 5" in text


SEEDS = {"part": "reported", "epochs": "1", "seeds": "2"}


def test_the_pair_is_trained_from_several_seeds_and_summed_up(visit):
    app = settled(press(visit(PAGE, **SEEDS), "Train them"), "seeds")
    assert not errors(app)
    with app.session_state["job:seeds"].reading() as history:
        assert history.config == SeedsConfig(epochs=1, seeds=2)
        assert set(history.curves) == {(1, 0), (2, 0), (1, 1), (2, 1)}
        assert f"**Measured here.** {history.verdict()}" in said(app)
        table = app.dataframe[-1].value
        assert table["test accuracy"].tolist() == [each for [each] in history.curves.values()]


def test_what_seeds_came_to_stays_when_they_are_stopped(visit):
    app = press(visit(PAGE, part="reported", epochs="100"), "Train them")
    assert button(app, "Train them").disabled
    rerun_until(app, lambda app: "epoch 1 done" in progress(app))
    app = press(app, "Stop")
    assert progress(app).startswith("Stopped · run 1 of 6, epoch")
    assert app.dataframe[-1].value["epoch"].tolist()[0] == 1
    assert not button(app, "Train them").disabled
    number_field(app, "Epochs").set_value(2).run()
    assert any("The settings have changed" in each.value for each in app.caption)


def test_a_number_of_seeds_that_is_refused_starts_nothing(visit):
    app = visit(PAGE, part="reported")
    number_field(app, "Seeds").set_value(1).run()
    assert any("seeds must be a whole number from 2 to 20" in each for each in errors(app))
    assert button(app, "Train them").disabled


# --- exercises ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXERCISES)
def test_no_answer_is_shown_before_the_guess(visit, name):
    app = visit(PAGE, part="exercises", exercise=name)
    answer = EXERCISES[name].solve()
    assert button(app, "Commit and reveal").disabled
    assert answer.words not in said(app)
    app.radio[0].set_value(answer.right).run()
    app = press(app, "Commit and reveal")
    assert answer.words in said(app)
    assert len(app.success) == 1
    assert app.radio[0].disabled


def test_a_wrong_guess_stands_beside_the_answer_and_stays(visit):
    app = visit(PAGE, part="exercises")
    app.radio[0].set_value(0).run()
    app = press(press(app, "Commit and reveal"), "Next question")
    assert link(app, "exercise") == ["resnet"]
    app = press(app, "Question before")
    wanted = "Not so. You said: about 16 times. It is: about as fast as one."
    assert errors(app) == [wanted]
    assert any(each.value == "1 of 9 guessed, 0 right." for each in app.caption)
    app = press(app, "Forget my guesses")
    assert not errors(app)


def test_a_run_to_check_the_advice_with_opens_as_it_is_called(visit):
    app = visit(PAGE, part="exercises", exercise="epochs")
    app.radio[0].set_value(0).run()
    app = press(app, "Commit and reveal")
    links = [each.proto for each in app.main.get("page_link")]
    assert [each.label for each in links] == list(LARGE_BATCHES)
    found = [f"{each.found[0].upper()}{each.found[1:]}." for each in LARGE_BATCHES.values()]
    said_below = [each.value for each in app.caption]
    start = said_below.index(found[0])
    assert said_below[start : start + len(found)] == found
    query = dict(parse_qsl(links[1].query_string))
    assert query == format_fields(list(LARGE_BATCHES.values())[1].config)
    assert not notices(visit("pages/fashion_mnist.py", **query))


# --- all parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["uneven", "reported", "exercises"])
def test_every_widget_of_a_part_explains_itself(visit, part):
    widgets = elements(visit(PAGE, part=part), "id", "help")
    assert [each.label for each in widgets if not each.help] == []


def test_a_chart_taken_home_is_a_row_per_mark():
    text = exports.columns_csv({"devices": [1, 2], "words": ["=1", "b"]})
    assert text == "devices,words\n1,'=1\n2,b\n"
