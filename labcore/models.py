"""The image classifiers: LeNet from plain functions, and residual networks for small images.

Every model takes images (n, 1, 28, 28), floating, and returns logits (n, 10). A model is built
without values; `replicas` lays its parameters into flat memory and `initialise` fills them.

Sources: Y. LeCun et al., Gradient-based learning applied to document recognition, 1998; K. He et
al., Deep residual learning for image recognition, 2015; both in the variants of the course notes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

CLASSES = 10


# fmt: off
def lenet(
    images: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    w3: Tensor, b3: Tensor, w4: Tensor, b4: Tensor,
) -> Tensor:
    """LeNet as plain functions of its eight tensors: two convolutions, two dense layers."""
    h1 = F.avg_pool2d(F.conv2d(images, w1, b1).relu(), 2)
    h2 = F.avg_pool2d(F.conv2d(h1, w2, b2).relu(), 2)
    h3 = F.linear(h2.flatten(1), w3, b3).relu()
    return F.linear(h3, w4, b4)
# fmt: on

LENET_SHAPES = ((20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (128, 800), (128,), (10, 128), (10,))
LENET_NAMES = ("w1", "b1", "w2", "b2", "w3", "b3", "w4", "b4")


class LeNet(nn.Module):
    """The eight tensors of `lenet`, for those who want a module."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in LENET_SHAPES)

    def forward(self, images: Tensor) -> Tensor:
        return lenet(images, *self.tensors)


class Residual(nn.Module):
    """Convolution, batch norm, ReLU, convolution, batch norm; plus the shortcut; then ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm1(self.conv1(images)).relu()
        hidden = self.norm2(self.conv2(hidden))
        summed: Tensor = hidden + self.shortcut(images)
        return summed.relu()


class ResNet(nn.Module):
    """A residual network for 28 × 28 images: no pooling in the stem, two blocks per stage.

    Args:
        widths: channels of each stage; every stage but the first halves the resolution.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 3, padding=1)
        self.stem_norm = nn.BatchNorm2d(widths[0])
        blocks = []
        for stage, (inputs, outputs) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            blocks.append(Residual(inputs, outputs, stride=1 if stage == 0 else 2))
            blocks.append(Residual(outputs, outputs, stride=1))
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(widths[-1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem_norm(self.stem(images)).relu()
        logits: Tensor = self.classifier(self.blocks(hidden).mean(dim=(2, 3)))
        return logits


Initialise = Callable[[Tensor, torch.Generator], object]


def _torch_default(weight: Tensor, generator: torch.Generator) -> Tensor:
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)


@dataclass(frozen=True)
class Initialisation:
    """How weights start; biases start at 0, batch norms at scale 1 and shift 0."""

    label: str
    fill: Initialise


INITIALISATIONS = {
    "normal": Initialisation(
        "N(0, 0.01²), as the notes", lambda w, g: nn.init.normal_(w, 0.0, 0.01, generator=g)
    ),
    "xavier": Initialisation("Xavier", lambda w, g: nn.init.xavier_uniform_(w, generator=g)),
    "he": Initialisation(
        "He", lambda w, g: nn.init.kaiming_normal_(w, nonlinearity="relu", generator=g)
    ),
    "torch": Initialisation("PyTorch's, biases 0", _torch_default),
}
"""Sources: X. Glorot and Y. Bengio, AISTATS 2010; K. He et al., ICCV 2015."""


def initialise(module: nn.Module, scheme: str, generator: torch.Generator) -> None:
    """Fill a model's parameters in place, drawing from `generator` on the CPU in a fixed order.

    The same generator state gives the same weights on any device, in any dtype and memory layout.
    """
    fill = INITIALISATIONS[scheme].fill
    norms = {
        id(parameter)
        for each in module.modules()
        if isinstance(each, nn.BatchNorm2d)
        for parameter in each.parameters(recurse=False)
    }
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                drawn = torch.empty(parameter.shape, dtype=torch.float32)
                fill(drawn, generator)
                parameter.copy_(drawn)
            else:
                is_scale = id(parameter) in norms and name.endswith("weight")
                parameter.fill_(1.0 if is_scale else 0.0)


@dataclass(frozen=True)
class Model:
    """An entry of `MODELS`.

    Attributes:
        label: what menus call it.
        build: makes the module; values and memory come later.
        smallest_shard: fewest images that it can be trained on: where the feature maps shrink to
            one pixel, batch norm has nothing to average over in a single image.
    """

    label: str
    build: Callable[[], nn.Module]
    smallest_shard: int = 1


MODELS = {
    "lenet": Model("LeNet", LeNet),
    "resnet18_quarter": Model("ResNet-18, quarter width", lambda: ResNet((16, 32, 64, 128))),
    "resnet18": Model("ResNet-18", lambda: ResNet((64, 128, 256, 512))),
    "resnet18_deeper": Model(
        "ResNet-18 with two more stages",
        lambda: ResNet((64, 128, 256, 512, 1024, 1024)),
        smallest_shard=2,
    ),
}


@cache
def tensor_bytes(model: str) -> tuple[int, ...]:
    """Sizes of a model's gradients in float32, tensor by tensor, from its name in `MODELS`."""
    with torch.device("meta"):
        return tuple(4 * parameter.numel() for parameter in MODELS[model].build().parameters())


def gradient_bytes(model: str) -> int:
    """Size of a model's whole gradient in float32, from its name in `MODELS`."""
    return sum(tensor_bytes(model))


@cache
def has_batch_norm(model: str) -> bool:
    """Whether a model, from its name in `MODELS`, averages over the images that it is given."""
    with torch.device("meta"):
        return any(isinstance(each, nn.BatchNorm2d) for each in MODELS[model].build().modules())
