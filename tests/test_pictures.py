"""Charts as files: read as a picture viewer would, made without a network."""

import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest

from labcore.charts import PALETTE, Columns
from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_charts import (
    accuracy_columns,
    accuracy_spec,
    confusion_columns,
    confusion_spec,
    loss_columns,
    loss_spec,
    phase_columns,
    phase_spec,
)
from labcore.classification_history import ClassificationHistory
from labcore.pictures import WIDTH, png, svg

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parent.parent
Picture = tuple[dict[str, object], Columns]


@pytest.fixture(scope="module")
def history() -> ClassificationHistory:
    config = ClassificationConfig(images=100, batch_size=10, replicas=2, epochs=2)
    history = ClassificationHistory(config, "here")
    for event in train_classifier(config):
        history.add(event)
    return history


@pytest.fixture(scope="module")
def pictures(history: ClassificationHistory) -> dict[str, Picture]:
    runs = {"mine": history}
    return {
        "loss": (loss_spec(("mine",), 2), loss_columns(runs)),
        "accuracy": (accuracy_spec(("mine",), 2, False), accuracy_columns(runs, None)),
        "phases": (phase_spec(), phase_columns(runs)),
        "confusion": (confusion_spec(), confusion_columns(history.epochs[-1].confusion)),
    }


every_picture = pytest.mark.parametrize("name", ["loss", "accuracy", "phases", "confusion"])


def drawn(text: str) -> ET.Element:
    return ET.fromstring(text)


def curves(text: str) -> list[ET.Element]:
    """The drawn lines of a chart."""
    groups = [each for each in drawn(text).iter(f"{SVG}g") if "mark-line" in each.get("class", "")]
    return [path for group in groups for path in group.iter(f"{SVG}path")]


@every_picture
def test_svg_is_xml_with_svg_at_its_root(name: str, pictures: dict[str, Picture]) -> None:
    assert drawn(svg(*pictures[name])).tag == f"{SVG}svg"


def test_svg_contains_the_loss_of_every_step(pictures: dict[str, Picture]) -> None:
    (curve,) = curves(svg(*pictures["loss"]))
    assert curve.get("d", "").count("L") == 19


def test_svg_contains_the_accuracy_of_every_epoch(pictures: dict[str, Picture]) -> None:
    (curve,) = curves(svg(*pictures["accuracy"]))
    assert curve.get("d", "").count("L") == 1


def test_svg_has_the_curve_in_the_palettes_first_colour(pictures: dict[str, Picture]) -> None:
    (curve,) = curves(svg(*pictures["loss"]))
    assert curve.get("stroke", "").lower() == PALETTE[0].lower()


def test_svg_of_a_confusion_matrix_has_its_hundred_cells(pictures: dict[str, Picture]) -> None:
    tree = drawn(svg(*pictures["confusion"]))
    groups = [each for each in tree.iter(f"{SVG}g") if "mark-rect" in each.get("class", "")]
    cells = [each for group in groups for each in group.iter(f"{SVG}path")]
    assert len(cells) == 100


@every_picture
def test_svg_has_a_white_ground(name: str, pictures: dict[str, Picture]) -> None:
    ground = next(drawn(svg(*pictures[name])).iter(f"{SVG}rect"))
    assert ground.get("fill") == "white"


@every_picture
def test_text_is_of_a_colour_that_paper_shows(name: str, pictures: dict[str, Picture]) -> None:
    assert "currentColor" not in svg(*pictures[name])


def chunks(content: bytes) -> dict[bytes, bytes]:
    """The parts of a PNG by their type, with their checksums checked."""
    found: dict[bytes, bytes] = {}
    place = 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind = content[place + 4 : place + 8]
        data = content[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(kind + data)
        found[kind] = found.get(kind, b"") + data
        place += 12 + length
    return found


def size(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", chunks(content)[b"IHDR"][:8])
    return width, height


@every_picture
def test_png_begins_with_its_magic_number(name: str, pictures: dict[str, Picture]) -> None:
    assert png(*pictures[name])[:8] == b"\x89PNG\r\n\x1a\n"


@every_picture
def test_png_is_whole(name: str, pictures: dict[str, Picture]) -> None:
    assert b"IEND" in chunks(png(*pictures[name]))


@every_picture
def test_png_has_twice_the_pixels_of_the_svg(name: str, pictures: dict[str, Picture]) -> None:
    root = drawn(svg(*pictures[name]))
    width, height = (float(root.get(side, "nan")) for side in ("width", "height"))
    assert size(png(*pictures[name])) == pytest.approx((2 * width, 2 * height), abs=2)


def test_png_is_not_blank(pictures: dict[str, Picture]) -> None:
    assert len(set(zlib.decompress(chunks(png(*pictures["loss"]))[b"IDAT"]))) > 10


def test_plot_is_as_wide_as_it_says(pictures: dict[str, Picture]) -> None:
    assert size(png(*pictures["loss"]))[0] >= 2 * WIDTH


def test_specification_stays_as_it_was(pictures: dict[str, Picture]) -> None:
    spec, columns = pictures["loss"]
    before = repr(spec)
    svg(spec, columns)
    assert repr(spec) == before


def test_pictures_are_made_without_a_network() -> None:
    """In a process that may open no connection, and with every proxy leading nowhere."""
    code = """
import socket

def refuse(*arguments):
    raise AssertionError(f"connected to {arguments}")

socket.socket.connect = socket.getaddrinfo = refuse
from labcore.classification_charts import loss_spec, loss_columns
from labcore.pictures import png, svg
spec, columns = loss_spec(("mine",), 2), loss_columns({})
print(len(svg(spec, columns)) > 1000, len(png(spec, columns)) > 1000)
"""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=proxies
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
