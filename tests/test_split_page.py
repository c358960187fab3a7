"""The page on splitting a batch as a script, without a browser: what it shows and survives."""

import base64
import csv
import io
import json

import pytest
import torch
from torch.utils.data import DistributedSampler

from labcore.config import ConfigError
from labcore.datasets import fashion_mnist
from labcore.exports import split_csv, split_json
from labcore.splitting import SPLITS, balanced, chunk, repeated, sampler, weighted
from labcore.weighting import WEIGHTINGS, compare
from labui.page import LABS
from labui.player.split import listed, split_film
from labui.split_form import PRESETS, SplitSettings, minibatch_of, parse_speeds
from labui.split_view import Shown, torch_split
from tests.test_pages import elements, errors, notices, number_field, press

PAGE = "pages/split_a_batch.py"
CASES = [(1, 1), (4, 2), (5, 4), (10, 4), (7, 16), (1, 16), (512, 16)]


def film(app):
    """What the page has sent to the player."""
    [mounted] = app.get("bidi_component")
    return json.loads(mounted.proto.json)


def shards(app):
    return film(app)["scene"]["shards"]


def sizes(app):
    return [len(shard) for shard in shards(app)]


def table(app):
    return app.dataframe[0].value.set_index("weighting")


def field(app, label):
    return next(each for each in app.text_input if each.label == label)


def shown(rows, devices, split="chunk", **more):
    settings = SplitSettings(rows=rows, devices=devices, split=split, **more)
    return Shown(settings, SPLITS[split](rows, devices), *minibatch_of(settings))


# --- what it shows --------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("rows", "devices"), CASES)
def test_every_split_is_shown_as_it_is(visit, split, rows, devices):
    app = visit(PAGE, split=split, rows=str(rows), devices=str(devices))
    assert not app.exception
    assert shards(app) == [list(shard) for shard in SPLITS[split](rows, devices)]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_shows_without_an_error(visit, name):
    app = press(visit(PAGE, rows="500", devices="13", split="weighted"), name)
    assert not app.exception
    assert not errors(app)
    assert film(app)["scene"]["rows"] == PRESETS[name]["rows"]


def test_the_notes_example_is_one_click_away(visit):
    app = press(visit(PAGE, rows="9", split="sampler"), "The notes' example: 4 × 3")
    assert shards(app) == [[0, 1], [2, 3]]
    assert film(app)["scene"]["values"] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert film(app)["scene"]["shapes"] == ["(2, 3)", "(2, 3)"]


def test_preset_with_speeds_uses_them(visit):
    assert sizes(press(visit(PAGE), "10 rows, speeds 3 1 1")) == [6, 2, 2]


def test_images_are_the_data_sets_own(visit):
    app = visit(PAGE, kind="images", rows="10", devices="3")
    data = fashion_mnist.load()
    sent = film(app)["scene"]
    assert sent["shape"] == "(10, 1, 28, 28)"
    pixels = torch.frombuffer(bytearray(base64.b64decode(sent["pixels"][7])), dtype=torch.uint8)
    assert torch.equal(pixels, data.train_images[data.train_rows(10)[7]].flatten())


def test_many_images_are_sent_without_pixels(visit):
    app = visit(PAGE, kind="images", rows="512", devices="16")
    assert film(app)["scene"]["pixels"] == []
    assert sum(sizes(app)) == 512


def test_sampler_can_drop_rows(visit):
    app = visit(PAGE, rows="5", devices="4", split="sampler", left_over="drop")
    assert shards(app) == [[0], [1], [2], [3]]
    assert film(app)["scene"]["missing"] == [4]
    assert any("Row 4 is dropped" in notice for notice in notices(app))


def test_a_split_that_drops_everything_is_shown(visit):
    app = visit(PAGE, rows="3", devices="4", split="sampler", left_over="drop")
    assert not app.exception
    assert sizes(app) == [0, 0, 0, 0]
    assert any("Rows 0, 1, 2 are dropped" in notice for notice in notices(app))


def test_an_idle_device_is_warned_of(visit):
    app = visit(PAGE, rows="5", devices="4")
    assert any(notice.startswith("Device 3 gets nothing") for notice in notices(app))


def test_more_devices_than_rows_are_allowed(visit):
    app = visit(PAGE, rows="2", devices="16", split="balanced")
    assert not errors(app)
    assert any(notice.startswith("Devices 2–15 get nothing") for notice in notices(app))


@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_a_single_row_is_warned_of_in_torchs_words(visit, kind):
    app = visit(PAGE, rows="5", devices="4", kind=kind)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as refused:
        torch.nn.BatchNorm1d(3)(torch.zeros(1, 3))
    words = str(refused.value).partition(",")[0]
    assert any(n.startswith("Device 2 gets a single row") and words in n for n in notices(app))


def test_repeated_rows_are_warned_of(visit):
    app = visit(PAGE, rows="5", devices="4", split="sampler")
    assert any(notice.startswith("Rows 0, 1, 2 are used 2 times") for notice in notices(app))


def test_an_even_split_warns_of_nothing(visit):
    assert notices(visit(PAGE, rows="8", devices="4")) == []


def test_one_device_says_that_there_is_nothing_to_split(visit):
    app = visit(PAGE, devices="1")
    assert "nothing to split" in app.info[0].value
    assert "nothing needs to be split" in film(app)["frames"][0]["sentence"]
    assert all("✓" in word for word in table(app)["right?"][1:])


# --- torch and the gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("rows", "devices"), CASES)
def test_torch_returns_the_shards_that_are_drawn(split, rows, devices):
    each = shown(rows, devices, split)
    returned = torch_split(each).returned
    for rank, shard in enumerate(each.shards):
        own = each.minibatch[list(shard)]
        other = returned[rank] if rank < len(returned) else each.minibatch[:0]
        assert torch.equal(own, other)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("left_over", ["pad", "drop"])
def test_the_calls_are_code_that_gives_the_shards(split, left_over):
    each = shown(10, 4, split, left_over=left_over)
    torchs = torch_split(each)
    scope = {"x": each.minibatch, "DistributedSampler": DistributedSampler}
    for call, shard in zip(torchs.calls, torchs.returned, strict=True):
        assert torch.equal(eval(call, scope), shard)
    assert all(map(torch.equal, eval(torchs.setup, scope), torchs.returned))


def test_torch_chunk_is_said_to_return_fewer_chunks(visit):
    app = visit(PAGE, rows="5", devices="4")
    assert any("Asked for 4 chunks, torch returns 3" in each.value for each in app.caption)
    assert "# (2, 3), (2, 3), (1, 3)" in app.code[0].value
    assert film(app)["frames"][4]["code"].startswith("len(x.chunk(4)) == 3")


@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_gradients_are_those_of_the_shards_on_the_page(visit, kind):
    app = visit(PAGE, rows="10", devices="4", kind=kind)
    _, inputs, labels = minibatch_of(SplitSettings(kind=kind, rows=10, devices=4))
    for each in compare(chunk(10, 4), inputs, labels):
        row = table(app).loc[WEIGHTINGS[each.weighting].label]
        assert float(row["relative error"]) == pytest.approx(each.error, rel=1e-2, abs=1e-9)
        assert float(row["learning rate ×"]) == pytest.approx(each.lr_factor, rel=1e-3)
        assert float(row["gradient's length"]) == pytest.approx(each.norm, rel=1e-3)


def test_only_the_right_weighting_is_right_for_uneven_shards(visit):
    words = table(visit(PAGE, rows="10", devices="4"))["right?"]
    assert words.to_dict() == {
        "full batch, on one device": "the goal",
        "sums / batch size": "✓ right",
        "mean of shard means": "✗ wrong",
        "mean of padded shards' means": "✗ wrong",
        "sum of shard means": "✗ wrong",
        "devices · sums / batch size": "✗ wrong",
    }


def test_averages_are_right_only_here_for_even_shards(visit):
    words = table(visit(PAGE, rows="8", devices="4"))["right?"]
    assert words["mean of shard means"] == "✓ right here only"


def test_no_weighting_is_right_where_rows_are_used_twice(visit):
    app = visit(PAGE, rows="5", devices="4", split="sampler")
    assert set(table(app)["right?"][1:]) == {"✗ wrong"}
    assert any("no weighting is right" in each.value for each in app.caption)


# --- the link, and bad input ----------------------------------------------------------------------


def test_the_url_says_everything(visit):
    query = {"kind": "images", "rows": "9", "devices": "3", "split": "weighted", "speeds": "1 2 3"}
    app = visit(PAGE, **query, at="2")
    assert film(app)["start"] == 2
    values = {name: app.query_params[name] for name in [*query, "at", "left_over"]}
    values = {name: v if isinstance(v, str) else v[0] for name, v in values.items()}
    assert values == {**query, "at": "2", "left_over": "pad"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"rows": "0"}, "rows must be a whole number from 1 to 512; received '0'"),
        ({"rows": "513"}, "rows must be a whole number from 1 to 512; received '513'"),
        ({"devices": "0"}, "devices must be a whole number from 1 to 16; received '0'"),
        ({"devices": "17"}, "devices must be a whole number from 1 to 16; received '17'"),
        ({"split": "halves"}, "split must be one of chunk"),
        ({"speeds": "1 nan"}, "speed of device 1 must be a positive number; received 'nan'"),
        ({"speeds": "1 2 3"}, "speeds must be 2 numbers, one per device; received '1 2 3'"),
        ({"colour": "red"}, "The link's setting 'colour' is unknown."),
    ],
)
def test_a_link_with_a_bad_setting_says_so_and_shows_the_default(visit, query, message):
    app = visit(PAGE, **query)
    assert any(message in notice for notice in notices(app))
    assert shards(app) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("label", "bad"), [("Devices", 17), ("Devices", 0), ("Number of rows", 0)])
def test_what_was_shown_stays_when_a_number_is_refused(visit, label, bad):
    app = visit(PAGE, rows="6", devices="3")
    number_field(app, label).set_value(bad).run()
    assert any(f"received '{bad}'" in message for message in errors(app))
    assert shards(app) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("word", ["nan", "0", "-1", "inf", "fast", "1e999"])
def test_what_was_shown_stays_when_a_speed_is_refused(visit, word):
    app = visit(PAGE, rows="10", devices="3", split="weighted", speeds="3 1 1")
    field(app, "Speeds").set_value(f"3 {word} 1").run()
    expected = f"speed of device 1 must be a positive number; received '{word}'"
    assert any(expected in message for message in errors(app))
    assert sizes(app) == [6, 2, 2]
    assert app.query_params["speeds"] in ("3 1 1", ["3 1 1"])


def test_a_device_without_a_speed_is_told_what_works(visit):
    app = visit(PAGE, rows="10", devices="3", split="weighted", speeds="3 1 1")
    number_field(app, "Devices").set_value(4).run()
    assert any("Try 3 1 1 1." in message for message in errors(app))
    field(app, "Speeds").set_value("3,1,1,1").run()
    assert not errors(app)
    assert sizes(app) == [len(shard) for shard in weighted(10, 4, [3, 1, 1, 1])]


def test_speeds_may_be_left_out():
    assert parse_speeds("  ", 3) is None


def test_speeds_are_read_with_spaces_or_commas():
    assert parse_speeds("3, 1.5 2e3", 3) == [3.0, 1.5, 2000.0]


@pytest.mark.parametrize(("text", "named"), [("x 1", "device 0"), ("1 -2", "device 1")])
def test_a_bad_speed_names_its_device(text, named):
    with pytest.raises(ConfigError, match=named):
        parse_speeds(text, 2)


@pytest.mark.parametrize("split", SPLITS)
def test_every_widget_explains_itself(visit, split):
    widgets = elements(visit(PAGE, split=split), "id", "help")
    assert [each.label for each in widgets if not each.help] == []


def test_the_sidebar_has_the_page():
    assert PAGE in [each.file for each in LABS]


# --- the film and the files -----------------------------------------------------------------------


def film_of(rows, devices, make=chunk):
    each = list(make(rows, devices))
    minibatch = torch.arange(3 * rows).view(rows, 3)
    return split_film("name", "Caption.", minibatch, each, [""] * devices)


def test_totals_at_the_end():
    assert film_of(10, 4).frames[-1]["totals"] == ["10 of 10", "3", "1", "0", "0"]
    assert film_of(5, 4, sampler).frames[-1]["totals"] == ["5 of 5", "2", "2", "3", "0"]
    dropped = film_of(10, 4, lambda rows, devices: sampler(rows, devices, drop_last=True))
    assert dropped.frames[-1]["totals"] == ["8 of 10", "2", "2", "0", "2"]


def test_what_is_dropped_is_not_told_before_the_end():
    assert [frame["totals"][-1] for frame in film_of(4, 2).frames] == ["–", "–", "0"]


@pytest.mark.parametrize("make", [chunk, balanced, sampler])
def test_a_question_is_answered_by_the_shard(make):
    answers = [frame["question"]["answer"] for frame in film_of(10, 4, make).frames[1:]]
    assert answers == [len(shard) for shard in make(10, 4)]


def test_sentences_name_rows_and_shape():
    sentences = [frame["sentence"] for frame in film_of(5, 4).frames[1:]]
    assert sentences == [
        "Rows 0, 1 → device 0: shape (2, 3).",
        "Rows 2, 3 → device 1: shape (2, 3).",
        "Row 4 → device 2: shape (1, 3).",
        "Device 3 gets nothing: shape (0, 3).",
    ]


def test_sentence_names_the_rows_that_were_used_before():
    assert film_of(5, 4, sampler).frames[4]["sentence"].endswith("Used before: row 2.")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([7], "row 7"),
        ([0, 1], "rows 0, 1"),
        ([0, 1, 2, 3], "rows 0–3"),
        ([3, 0, 1, 2], "rows 3, 0, 1, 2"),
        (list(range(0, 40, 4)), "rows 0, 4, 8, 12, …, 36"),
    ],
)
def test_numbers_in_words(numbers, words):
    assert listed("row", numbers) == words


def test_the_largest_film_is_small(visit):
    app = visit(PAGE, kind="images", rows="64", devices="16", split="sampler")
    [mounted] = app.get("bidi_component")
    assert len(mounted.proto.json) < 150_000


def test_csv_has_a_line_per_use_of_a_row():
    own = sampler(5, 4)
    lines = list(csv.DictReader(io.StringIO(split_csv(own))))
    read = [[int(e["row"]) for e in lines if int(e["device"]) == rank] for rank in range(4)]
    assert read == [list(shard) for shard in own]
    assert [int(each["place"]) for each in lines] == [0, 1] * 4


def test_json_has_the_shards_and_what_is_wrong_with_them():
    own = sampler(5, 4)
    read = json.loads(split_json("sampler", 5, own))
    assert read["shards"] == [list(shard) for shard in own]
    assert {int(row): count for row, count in read["repeated"].items()} == repeated(own)
    assert read["missing"] == []
