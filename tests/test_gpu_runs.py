"""The same training on GPUs: nccl, processes that share a card, SyncBatchNorm, nn.DataParallel.

Run them with `python -m pytest -m gpu`; without CUDA they skip themselves.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labcore import classification
from labcore.classification import ClassificationConfig, train_classifier
from labcore.data_parallel import DataParallelReplicas
from labcore.datasets import fashion_mnist
from labcore.events import (
    ClassificationEvent,
    ClassifierTrained,
    EpochEvaluated,
    MinibatchTrained,
)
from labcore.replicas import Replicas

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device, and this machine has none"),
]
needs_two = pytest.mark.skipif(GPUS < 2, reason=f"needs 2 CUDA devices; this machine has {GPUS}")

RUN = ClassificationConfig(images=1_000, batch_size=101, epochs=2, lr=0.01, replicas=1)
"""20 steps."""
ALLOWED = 1e-4
"""cuDNN may choose other algorithms for shards of another size, which add in another order."""


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Without TensorFloat-32, whose products have ten bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def data() -> fashion_mnist.FashionMNIST:
    return fashion_mnist.load(fashion_mnist.EMBEDDED)


def on_processes(
    config: ClassificationConfig, folder: Path
) -> tuple[list[ClassificationEvent], Tensor]:
    path = folder / "run.ckpt"
    events = list(train_classifier(replace(config, engine="processes"), data(), checkpoint=path))
    return events, torch.load(path, weights_only=True)["replica"]["parameters"][0]


def in_one(
    config: ClassificationConfig, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[Tensor]]:
    """The replica's state at the end of the same run in this process, on its engine."""
    made: list[Replicas] = []
    for kind in (Replicas, DataParallelReplicas):

        class Watched(kind):  # type: ignore[valid-type, misc]
            def __init__(self, *args: object) -> None:
                super().__init__(*args)
                made.append(self)

        monkeypatch.setattr(classification, kind.__name__, Watched)
    list(train_classifier(config, data()))
    return made[0].ranks[0].state()


def check(
    config: ClassificationConfig, backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, parameters = on_processes(config, folder)
    trained = events[-1]
    assert isinstance(trained, ClassifierTrained)
    assert backend in trained.placement
    assert {each.drift for each in events if isinstance(each, MinibatchTrained)} == {0.0}
    [expected] = in_one(config, monkeypatch)["parameters"]
    assert float((parameters - expected.cpu()).abs().max()) <= ALLOWED
    for each in events:
        if isinstance(each, EpochEvaluated):
            assert sum(map(sum, each.confusion)) == config.test_images


def test_one_process_with_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(RUN, "nccl", tmp_path, monkeypatch)


def test_more_processes_than_gpus_with_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(RUN, replicas=GPUS + 1)
    check(config, "gloo", tmp_path, monkeypatch)


@needs_two
def test_a_process_per_gpu_with_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(replace(RUN, replicas=min(GPUS, 16)), "nccl", tmp_path, monkeypatch)


@pytest.mark.parametrize("processes", [1, 2])
def test_synchronised_batch_norm_averages_over_the_minibatch(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its running statistics are those of one device that has the whole minibatch."""
    settings = {"images": 100, "batch_size": 50, "epochs": 1, "replicas": processes}
    config = ClassificationConfig(
        **settings, model="resnet18_quarter", lr=0.01, batch_norm="synchronised", engine="processes"
    )
    path = tmp_path / "run.ckpt"
    list(train_classifier(config, data(), checkpoint=path))
    ours = torch.load(path, weights_only=True)["replica"]["buffers"]
    alone = replace(config, replicas=1, batch_norm="local", engine="logical")
    for mine, other in zip(ours, in_one(alone, monkeypatch)["buffers"], strict=True):
        torch.testing.assert_close(mine, other.cpu(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=needs_two)])
def test_data_parallel_takes_the_same_steps(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(RUN, replicas=gpus)
    [ours] = in_one(replace(config, engine="dataparallel"), monkeypatch)["parameters"]
    [theirs] = in_one(config, monkeypatch)["parameters"]
    assert float((ours - theirs).abs().max()) <= ALLOWED


def test_data_parallel_is_refused_with_fewer_gpus_than_devices() -> None:
    if GPUS >= 16:
        pytest.skip("no config asks for more GPUs than this machine has")
    with pytest.raises(ValueError, match="no GPU for each device"):
        train_classifier(ClassificationConfig(engine="dataparallel", replicas=GPUS + 1), data())
