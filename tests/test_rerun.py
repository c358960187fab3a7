"""The stand-alone script, tested by running it: its numbers are the run's."""

import ast
import gzip
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from labcore import rerun, schedules
from labcore.classification import ClassificationConfig, train_classifier
from labcore.collectives import ALLREDUCE
from labcore.config import ConfigError, ruled_fields
from labcore.datasets.fashion_mnist import EMBEDDED
from labcore.events import EpochEvaluated, MinibatchTrained
from labcore.models import INITIALISATIONS, MODELS
from labcore.quoting import Quotes
from labcore.rerun import script
from labcore.splitting import PARTITIONS

RULES = {each.name: rule for each, rule in ruled_fields(ClassificationConfig)}
LENET = ClassificationConfig(images=200, epochs=2, replicas=1)
QUARTER = ClassificationConfig(
    model="resnet18_quarter", images=100, epochs=1, replicas=2, initialisation="he", momentum=0.5
)
CONFIGS = {
    "LeNet on one": LENET,
    "LeNet on three": ClassificationConfig(
        images=200, epochs=2, replicas=3, batch_size=20, scaling="scaled", initialisation="xavier"
    ),
    "LeNet on three in a ring": ClassificationConfig(
        images=200, epochs=2, replicas=3, split="balanced", allreduce="ring", momentum=0.9, seed=7
    ),
    "LeNet with a warm-up": ClassificationConfig(
        images=200, epochs=2, replicas=4, batch_size=10, scaling="scaled", warmup_epochs=1.5
    ),
    "LeNet with empty shards": ClassificationConfig(
        images=110, epochs=1, replicas=16, batch_size=50, initialisation="normal"
    ),
    "quarter ResNet": QUARTER,
}


def run_alone(text: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, where nothing of the lab is to be found."""
    (folder / "script.py").write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-W", "error", "script.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


def printed(text: str) -> list[tuple[float, str]]:
    """Mean loss, and accuracy as it is written, of each epoch."""
    found = re.findall(r"epoch \d+: mean loss ([\d.]+), test accuracy ([\d.]+)", text)
    return [(float(loss), accuracy) for loss, accuracy in found]


def trained(config: ClassificationConfig) -> list[tuple[float, str]]:
    """The same of the run itself."""
    epochs, total = [], 0.0
    for event in train_classifier(config):
        if isinstance(event, MinibatchTrained):
            total += event.loss * sum(event.rows)
        elif isinstance(event, EpochEvaluated):
            epochs.append((total / config.images, f"{event.accuracy:.4f}"))
            total = 0.0
    return epochs


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_script_repeats_the_numbers_of_the_run(
    config: ClassificationConfig, tmp_path: Path
) -> None:
    run = run_alone(script(config), tmp_path, str(EMBEDDED))
    assert run.stderr == ""
    expected = trained(config)
    losses, accuracies = zip(*printed(run.stdout), strict=True)
    assert losses == pytest.approx([loss for loss, _ in expected], abs=1e-5, rel=0)
    assert accuracies == tuple(accuracy for _, accuracy in expected)


def test_a_script_reads_plain_files_too(tmp_path: Path) -> None:
    for file in EMBEDDED.glob("*.gz"):
        (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    run = run_alone(script(ClassificationConfig(images=100, epochs=1), "."), tmp_path)
    assert len(printed(run.stdout)) == 1


def test_a_script_says_what_it_lacks(tmp_path: Path) -> None:
    run = run_alone(script(LENET, 'it\'s \\ "not" there'), tmp_path)
    assert run.returncode == 1
    [message] = run.stderr.splitlines()
    assert re.match(r'it\'s \\ "not" there/train-images-idx3-ubyte.gz is missing. Name', message)


def test_a_script_does_not_pass_off_fewer_images(tmp_path: Path) -> None:
    run = run_alone(script(ClassificationConfig(images=60_000)), tmp_path, str(EMBEDDED))
    assert "The run had 60,000 training images" in run.stderr


def test_a_script_stops_where_the_run_diverges(tmp_path: Path) -> None:
    config = ClassificationConfig(
        model="resnet18_quarter", images=100, epochs=20, replicas=1, lr=100.0
    )
    run = run_alone(script(config), tmp_path, str(EMBEDDED))
    assert re.fullmatch(r"The loss stopped being finite in epoch \d+\.\n", run.stderr)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scheme", INITIALISATIONS)
def test_every_model_and_initialisation_can_be_quoted(model: str, scheme: str) -> None:
    check(script(ClassificationConfig(model=model, initialisation=scheme, batch_size=100)))


@pytest.mark.parametrize("split", RULES["split"].options)
@pytest.mark.parametrize("allreduce", ALLREDUCE)
def test_every_split_and_allreduce_can_be_quoted(split: str, allreduce: str) -> None:
    check(script(ClassificationConfig(split=split, allreduce=allreduce)))


def check(text: str) -> None:
    """That a script needs nothing but torch, numpy and Python, and no name that it lacks."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,I", "-"]
    linted = subprocess.run(command, input=text, capture_output=True, encoding="utf-8")
    assert linted.returncode == 0, linted.stdout
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        + ([each.name for each in node.names] if isinstance(node, ast.Import) else [])
    }
    assert imported - sys.stdlib_module_names <= {"torch", "numpy"}


@pytest.mark.parametrize("allreduce", ALLREDUCE)
@pytest.mark.parametrize("world_size", [1, 2, 5, 8, 12])
def test_a_quoted_allreduce_sums_as_the_labs_own(allreduce: str, world_size: int) -> None:
    """To the last bit, and so in the same order."""
    quoted = quoted_up_to_play(script(ClassificationConfig(allreduce=allreduce)))
    generator = torch.Generator().manual_seed(0)
    theirs = list(torch.randn(world_size, 50, generator=generator))
    ours = [vector.clone() for vector in theirs]
    quoted["play"](quoted[allreduce](world_size), theirs)
    schedules.allreduce(ALLREDUCE[allreduce](world_size), ours)
    assert all(map(torch.equal, theirs, ours))


def quoted_up_to_play(text: str) -> dict[str, Any]:
    """What a script defines before it trains."""
    body = ast.parse(text).body
    names = [getattr(statement, "name", None) for statement in body]
    namespace: dict[str, Any] = {}
    exec(ast.unparse(body[: names.index("play") + 1]), namespace)
    return namespace


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_script_is_short_enough_to_read(config: ClassificationConfig) -> None:
    assert sum(1 for line in script(config).splitlines() if line.strip()) <= 200


@pytest.mark.parametrize("allreduce", ALLREDUCE)
def test_no_allreduce_makes_a_script_much_longer(allreduce: str) -> None:
    text = script(ClassificationConfig(allreduce=allreduce))
    assert sum(1 for line in text.splitlines() if line.strip()) <= 235


def test_a_script_names_the_command_that_is_the_same_run() -> None:
    command = "python -m labcore classify --model resnet18_quarter --replicas 2 --images 100 "
    assert command + "--momentum 0.5 --epochs 1 --initialisation he\n" in script(QUARTER)


@pytest.mark.parametrize("engine", ["processes", "dataparallel"])
def test_a_script_of_another_engine_says_what_it_repeats(engine: str) -> None:
    text = script(replace(QUARTER, engine=engine))
    check(text)
    assert f"--engine {engine}" in text
    assert "They are those of the run up to rounding." in ast.get_docstring(ast.parse(text))


def test_synchronised_batch_norm_has_no_script() -> None:
    config = replace(QUARTER, engine="processes", batch_norm="synchronised")
    with pytest.raises(ConfigError, match=r"batch norm over each shard.*received synchronised"):
        script(config)


def test_quotes_have_what_they_need_before_them() -> None:
    text = Quotes(set()).quote(MODELS["lenet"].build)
    assert text.index("def lenet(") < text.index("class LeNet(")


def test_quotes_leave_out_what_is_already_quoted() -> None:
    quotes = Quotes(set())
    assert "def _between(" in quotes.quote(PARTITIONS["chunk"])
    assert "def _between(" not in quotes.quote(PARTITIONS["balanced"])


def test_quotes_leave_out_checks_and_long_docstrings() -> None:
    text = Quotes(set()).quote(PARTITIONS["chunk"])
    assert not re.search("_check|Raises|refusal", text)


def test_quotes_stop_at_what_the_script_provides() -> None:
    text = Quotes(rerun.PROVIDED).quote(ALLREDUCE["central"])
    assert text.startswith("def central(")
