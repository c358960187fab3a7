"""How fast classification runs are: `python -m tests.benchmarks.bench_classification`.

It takes about three minutes on two idle cores, on the full Fashion-MNIST where it is on this
machine, else on the embedded sample. Four lines:

- LeNet against a plain loop as the notes describe it: torchvision's dataset with `ToTensor` per
  image, a `DataLoader` with its best number of workers, plain tensors, SGD by hand;
- four logical replicas against one;
- ResNet-18 against a plain eager loop of torch's modules and optimiser on tensors in memory;
- a run in the job pool that is read every half second, as a page does it, against iterating over
  the same events.

All sides of a line take turns in one process, so that a busy machine slows down all; what counts is
the median over rounds of their ratio. Training only: the clock starts after the first minibatch,
when a loader's workers have started, and evaluations are left out, but for the last line. Both
sides use the same threads: one per core, or as many as the first argument says, which is steadier
on a busy machine if it is 1. Exits with 1 if a requirement is missed.
"""

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import FashionMNIST as TorchvisionSet
from torchvision.transforms import ToTensor

from labcore.classification import ClassificationConfig, train_classifier
from labcore.classification_history import ClassificationHistory
from labcore.datasets import fashion_mnist
from labcore.events import StepTaken
from labcore.jobs import Pool
from labcore.models import LENET_SHAPES, MODELS

Side = Callable[[], float]
"""Does its work and returns the seconds that count."""

BATCH = 256
RESNET_BATCH = 32
RESNET_STEPS = 2
"""Counted, after one that is not."""
ROUNDS = {"plain": 9, "replicas": 9, "resnet": 5, "pool": 5}
POOL_EPOCHS = 3
"""Enough for two seconds or more, so that a run is read several times."""
POLL_SECONDS = 0.5
FASTER = {"plain": 1.35, "resnet": 0.95}
"""How many times faster than the plain loop ours must be. Five sixths of a step of ResNet-18 are
torch's convolutions, the same on both sides: there, ours must only not be slower."""
SLOWER = {"replicas": 1.10, "pool": 1.05}
"""How many times as long ours may take."""

DATA = fashion_mnist.load(
    fashion_mnist.DEBIAN if fashion_mnist.DEBIAN.exists() else fashion_mnist.EMBEDDED
)
IMAGES = min(len(DATA.train_labels), 24 * BATCH)
"""A part of an epoch on the full set, all of the sample."""


def rounds(sides: dict[str, Side], number: int) -> dict[str, list[float]]:
    """Seconds of every side in every round; the order turns round by round, the first is dropped.

    So neither side profits from a warm or an idle machine.
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(number + 1):
        for side in list(sides)[:: 1 if turn % 2 else -1]:
            times[side].append(sides[side]())
    return {side: taken[1:] for side, taken in times.items()}


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of how many times as long `slow` took."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def our_steps(steps: int | None = None, **settings: object) -> float:
    """Seconds of a run's steps after the first, all or so many of the first epoch."""
    config = ClassificationConfig(**{"images": IMAGES, "epochs": 1, **settings})  # type: ignore[arg-type]
    wanted = config.steps_per_epoch if steps is None else steps + 1
    events = train_classifier(config, DATA)
    taken = (perf_counter() for event in events if isinstance(event, StepTaken))
    ends = list(islice(taken, wanted))
    events.close()
    return ends[-1] - ends[0]


# --- the notes' loop ------------------------------------------------------------------------


def torchvision_set(root: Path) -> Subset[tuple[Tensor, int]]:
    """The same images through torchvision's own class, one `ToTensor` per image."""
    raw = root / fashion_mnist.TORCHVISION
    raw.mkdir(parents=True)
    source = fashion_mnist.DEBIAN if fashion_mnist.DEBIAN.exists() else fashion_mnist.EMBEDDED
    for name in fashion_mnist.ROLES:
        (raw / name).write_bytes(gzip.decompress((source / f"{name}.gz").read_bytes()))
    images = TorchvisionSet(str(root), train=True, transform=ToTensor())
    return Subset(images, DATA.train_rows(IMAGES).tolist())


def plain_lenet(x: Tensor, parameters: list[Tensor]) -> Tensor:
    """LeNet of plain tensors, as the notes write it."""
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    h1 = F.avg_pool2d(F.relu(F.conv2d(x, w1, b1)), (2, 2), (2, 2))
    h2 = F.avg_pool2d(F.relu(F.conv2d(h1, w2, b2)), (2, 2), (2, 2))
    h3 = F.relu(torch.mm(h2.reshape(h2.shape[0], -1), w3) + b3)
    return torch.mm(h3, w4) + b4


def plain_steps(images: Subset[tuple[Tensor, int]], workers: int) -> float:
    """Seconds of the notes' loop after its first minibatch."""
    # Dense layers as the notes have them: inputs × outputs.
    shapes = [s if len(s) != 2 else s[::-1] for s in LENET_SHAPES]
    parameters = [torch.randn(s) * 0.01 if len(s) > 1 else torch.zeros(s) for s in shapes]
    for parameter in parameters:
        parameter.requires_grad_()
    loader = DataLoader(images, batch_size=BATCH, shuffle=True, num_workers=workers)
    ends = []
    for x, y in loader:
        F.cross_entropy(plain_lenet(x, parameters), y, reduction="none").sum().backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.2 * parameter.grad / len(y)
                parameter.grad.zero_()
        ends.append(perf_counter())
    return ends[-1] - ends[0]


def compare_with_plain() -> tuple[str, float]:
    """What is compared, and how many times faster ours is."""
    with TemporaryDirectory() as folder:
        images = torchvision_set(Path(folder))
        tried = rounds({str(n): partial(plain_steps, images, n) for n in (0, 1, 2)}, 2)
        workers = int(min(tried, key=lambda n: median(tried[n])))
        ours = partial(our_steps, replicas=1, batch_size=BATCH, lr=0.2, initialisation="normal")
        times = rounds(
            {"plain": partial(plain_steps, images, workers), "ours": ours}, ROUNDS["plain"]
        )
    images_per_second = {side: (IMAGES - BATCH) / median(taken) for side, taken in times.items()}
    speeds = f"{images_per_second['plain']:,.0f} → {images_per_second['ours']:,.0f} images/s"
    name = f"LeNet: ours against the notes' loop, {workers} workers, {speeds}"
    return name, ratio(times["plain"], times["ours"])


# --- replicas -------------------------------------------------------------------------------


def compare_replicas() -> tuple[str, float]:
    """What is compared, and how many times as long four replicas take."""
    sides = {str(k): partial(our_steps, replicas=k, batch_size=BATCH) for k in (1, 4)}
    times = rounds(sides, ROUNDS["replicas"])
    seconds = {k: median(taken) for k, taken in times.items()}
    name = f"LeNet: 4 replicas against 1, {seconds['1']:.2f} → {seconds['4']:.2f} s"
    return name, ratio(times["4"], times["1"])


# --- ResNet-18 ------------------------------------------------------------------------------


def plain_resnet() -> float:
    """Seconds of a plain loop's steps after the first, with torch's modules and optimiser."""
    net = MODELS["resnet18"].build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    images = DATA.train_images.unsqueeze(1)
    ends = []
    for rows in torch.randperm(6_000).split(RESNET_BATCH)[: RESNET_STEPS + 1]:
        optimizer.zero_grad()
        criterion(net(images[rows].float() / 255), DATA.train_labels[rows]).backward()
        optimizer.step()
        ends.append(perf_counter())
    return ends[-1] - ends[0]


def compare_resnet() -> tuple[str, float]:
    """What is compared, and how many times faster ours is."""
    ours = partial(
        our_steps, RESNET_STEPS, model="resnet18", replicas=1, images=6_000, batch_size=RESNET_BATCH
    )
    times = rounds({"plain": plain_resnet, "ours": ours}, ROUNDS["resnet"])
    speed = {side: RESNET_STEPS * RESNET_BATCH / median(taken) for side, taken in times.items()}
    name = f"ResNet-18: ours against plain, {speed['plain']:.1f} → {speed['ours']:.1f} images/s"
    return name, ratio(times["plain"], times["ours"])


# --- the job pool ---------------------------------------------------------------------------


def headless(config: ClassificationConfig) -> float:
    """Take every event of a run; its seconds, evaluation included."""
    started = perf_counter()
    for _ in train_classifier(config, DATA):
        pass
    return perf_counter() - started


def in_the_pool(pool: Pool, config: ClassificationConfig) -> float:
    """Run it as a job, and read its history as the page does; its seconds."""
    started = perf_counter()
    history = ClassificationHistory(config, DATA.source)
    job = pool.submit(train_classifier(config, DATA), history, owner="benchmark", wide=True)
    while not job.wait(POLL_SECONDS):
        with job.reading() as read:
            now = read.copy()
        _ = list(now.minibatches), now.seconds_left, now.images_per_second
    seconds = perf_counter() - started
    if job.state != "finished":
        raise RuntimeError(f"The job ended as {job.state}: {job.error}")
    return seconds


def compare_pool() -> tuple[str, float]:
    """What is compared, and how many times as long a run in the pool takes."""
    config = ClassificationConfig(replicas=4, images=IMAGES, batch_size=BATCH, epochs=POOL_EPOCHS)
    pool = Pool(1)
    pool.cores = torch.get_num_threads()
    sides = {"alone": partial(headless, config), "pool": partial(in_the_pool, pool, config)}
    times = rounds(sides, ROUNDS["pool"])
    pool.close()
    seconds = {side: median(taken) for side, taken in times.items()}
    name = f"LeNet: in the pool against headless, {seconds['alone']:.2f} → {seconds['pool']:.2f} s"
    return name, ratio(times["pool"], times["alone"])


def lines() -> Iterator[tuple[str, bool]]:
    """A line per comparison, with the ratio and its requirement, and whether that is met."""
    for key, compare in [
        ("plain", compare_with_plain),
        ("replicas", compare_replicas),
        ("resnet", compare_resnet),
        ("pool", compare_pool),
    ]:
        name, measured = compare()
        if key in FASTER:
            yield (
                f"{name}: {measured:.2f}× faster, required {FASTER[key]}×",
                measured >= FASTER[key],
            )
        else:
            yield (
                f"{name}: {measured:.3f}× as long, allowed {SLOWER[key]}×",
                measured <= SLOWER[key],
            )


def main() -> int:
    """Print a line per comparison; 1 if a requirement is missed."""
    torch.set_num_threads(int(sys.argv[1]) if sys.argv[1:] else os.cpu_count() or 1)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"{torch.get_num_threads()} torch threads; load {load}; {IMAGES:,} images; {DATA.source}",
        flush=True,
    )
    missed = 0
    for line, met in lines():
        missed += not met
        print(line if met else f"{line}  MISSED", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
