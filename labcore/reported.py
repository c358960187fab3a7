"""What the course notes state about their experiments: settings and results, never measured here.

Source: course notes on optimisers and multi-GPU training, after A. Zhang, Z. Lipton, M. Li and
A. Smola, Dive into Deep Learning, chapters "Optimization Algorithms" and "Computational
Performance".
"""

from dataclasses import dataclass

from labcore.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer, RMSprop

AIRFOIL_PRESETS: tuple[Optimizer, ...] = (
    SGD(lr=0.01),
    Momentum(lr=0.005, momentum=0.9),
    Adagrad(lr=0.1),
    RMSprop(lr=0.01, alpha=0.9),
    Adam(lr=0.01),
)
"""The five optimisers that the notes train on airfoil self-noise: 4 epochs, batch size 10, MSE."""

AIRFOIL_LOSS_AXIS = (0.22, 0.35)
"""The vertical axis of the notes' loss curves, in ½ MSE."""


@dataclass(frozen=True)
class ReportedRun:
    """One training run on Fashion-MNIST as the notes report it: 10 epochs, N(0, 0.01²) start.

    Attributes:
        model: a name in `MODELS`.
        devices: how many GPUs.
        batch_size: images per step over all devices.
        lr: learning rate.
        accuracy: final test accuracy.
        seconds_per_epoch: on the notes' machine.
        curve: test accuracy after each epoch, read off the notes' drawing, where there is one.
    """

    model: str
    devices: int
    batch_size: int
    lr: float
    accuracy: float
    seconds_per_epoch: float
    curve: tuple[float, ...] = ()


FASHION_MNIST_RUNS = (
    ReportedRun("lenet", 1, 256, 0.2, 0.76, 4.9),
    ReportedRun("lenet", 2, 256, 0.2, 0.83, 5.0),
    ReportedRun(
        "resnet18", 1, 256, 0.1, 0.91, 13.1,
        (0.775, 0.857, 0.881, 0.889, 0.856, 0.903, 0.899, 0.903, 0.920, 0.914),
    ),
    ReportedRun("resnet18_deeper", 1, 256, 0.1, 0.90, 7.9),
    ReportedRun("resnet18_deeper", 2, 512, 0.2, 0.75, 13.8),
    ReportedRun("resnet18_deeper", 1, 512, 0.1, 0.87, 7.6),
    ReportedRun("resnet18_deeper", 2, 1024, 0.2, 0.90, 8.6),
    ReportedRun("resnet18_deeper", 1, 1024, 0.1, 0.69, 7.7),
    ReportedRun("resnet18_deeper", 2, 2048, 0.2, 0.79, 6.4),
    ReportedRun("resnet18_deeper", 3, 3072, 0.3, 0.79, 5.4),
)  # fmt: skip
"""ResNet-18 on one V100; the notes do not name the other GPUs."""
