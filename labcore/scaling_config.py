"""A model, a number of like devices and their links, as the user sets them; and settings to try."""

from dataclasses import dataclass

from labcore.collectives import ALLREDUCE
from labcore.config import Config, ConfigError, choice, number
from labcore.costs import LINKS, Link
from labcore.hardware import GPUS, Device
from labcore.models import MODELS
from labcore.network import MOST_DEVICES, Network

_LINKS = {name: link.label for name, link in LINKS.items()} | {"typed": "typed in"}


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(Config):
    """A model on a number of like devices, their links, and how the work grows with them."""

    name = "scaling"

    model: str = choice(
        "model",
        "resnet18",
        {name: model.label for name, model in MODELS.items()},
        help="Decides how many bytes of gradient are summed in every step, and what a known GPU "
        "makes of an image.",
    )
    device: str = choice(
        "device",
        "v100",
        {name: f"{gpu.label} (modelled)" for name, gpu in GPUS.items()}
        | {"measured": "measured here", "typed": "typed in"},
        help="What computes. A known GPU is modelled from its peak rate; what is measured here or "
        "typed in is fixed cost and speed below.",
    )
    fixed_ms: float = number(
        "fixed cost (ms)",
        2.0,
        0.0,
        1e5,
        help="What a step costs a device however few its images; for a device that is not listed.",
    )
    speed: float = number(
        "speed (images/s)",
        4000.0,
        1e-3,
        1e9,
        log=True,
        help="Images per second, forward and backward; for a device that is not listed.",
    )
    devices: int = number(
        "devices", 16, 1, MOST_DEVICES, log=True, help="How many devices share the work."
    )
    growth: str = choice(
        "scaling",
        "strong",
        {"strong": "strong: one batch for all", "weak": "weak: a batch per device"},
        help="Whether the minibatch stays as it is and shares shrink, or every device keeps its "
        "share and the minibatch grows.",
    )
    batch_size: int = number(
        "batch size",
        256,
        1,
        1_000_000,
        log=True,
        help="Images per step over all devices where scaling is strong, else per device.",
    )
    images: int = number(
        "training images", 60_000, 1, 10**9, log=True, help="How many images make an epoch."
    )
    algorithm: str = choice(
        "allreduce",
        "ring",
        {name: name.replace("_", " ") for name in ALLREDUCE},
        help="By which algorithm gradients are summed; central is that of the notes.",
    )
    overlap: str = choice(
        "overlap",
        "on",
        {"on": "during the backward pass", "off": "after it"},
        help="Whether gradients are summed bucket by bucket while earlier layers still compute, or "
        "all at once when they are done, as in the Fashion-MNIST lab.",
    )
    first_bucket: float = number(
        "first bucket (MiB)",
        1.0,
        0.001,
        10_000.0,
        log=True,
        help="Gradients are sent as soon as so many are there; small, to begin early.",
    )
    bucket: float = number(
        "other buckets (MiB)",
        25.0,
        0.001,
        10_000.0,
        log=True,
        help="Large ones start fewer messages, small ones leave less for the end.",
    )
    per_machine: int = number(
        "devices per machine",
        8,
        1,
        MOST_DEVICES,
        log=True,
        help="Devices beyond that are in other machines, behind the link between them.",
    )
    inside: str = choice(
        "link inside a machine", "pcie3", _LINKS, help="What connects devices of a machine."
    )
    inside_latency: float = number(
        "latency inside (µs)", 5.7, 0.0, 1e6, help="Per message; for a link that is typed in."
    )
    inside_bandwidth: float = number(
        "bandwidth inside (GB/s)",
        12.0,
        1e-6,
        1e6,
        log=True,
        help="In each direction; for a link that is typed in.",
    )
    between: str = choice(
        "link between machines",
        "ethernet25",
        _LINKS,
        help="What connects a machine to the others; its devices share it.",
    )
    between_latency: float = number(
        "latency between (µs)", 20.0, 0.0, 1e6, help="Per message; for a link that is typed in."
    )
    between_bandwidth: float = number(
        "bandwidth between (GB/s)",
        3.0,
        1e-6,
        1e6,
        log=True,
        help="In each direction; for a link that is typed in.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth == "strong" and self.devices > self.batch_size:
            raise ConfigError(
                f"{self.name}: every device must get a row of a minibatch; received {self.devices} "
                f"devices for {self.batch_size} rows. Try batch size {self.devices} or "
                f"{self.batch_size} devices."
            )
        if self.global_batch > self.images:
            raise ConfigError(
                f"{self.name}: a minibatch must fit into the training images; received "
                f"{self.global_batch} of {self.images}. Try {self.global_batch} images or a "
                "smaller batch size."
            )

    @property
    def global_batch(self) -> int:
        """Images per step over all devices."""
        return self.batch_size * (self.devices if self.growth == "weak" else 1)

    @property
    def computing(self) -> Device:
        """One of the devices."""
        if self.device in GPUS:
            return GPUS[self.device].device(self.model)
        return Device(self.fixed_ms / 1e3, self.speed)

    @property
    def network(self) -> Network:
        """What connects the devices."""
        typed = "typed in"
        inside = LINKS.get(self.inside) or Link(
            typed, self.inside_latency / 1e6, self.inside_bandwidth * 1e9, typed
        )
        between = LINKS.get(self.between) or Link(
            typed, self.between_latency / 1e6, self.between_bandwidth * 1e9, typed
        )
        return Network(self.algorithm, inside, between, self.per_machine)

    @property
    def device_words(self) -> str:
        """What computes: a GPU's name, or where the figures are from."""
        if self.device in GPUS:
            return GPUS[self.device].label
        return f"device as {'measured here' if self.device == 'measured' else 'typed in'}"


PRESETS: dict[str, tuple[str, ScalingConfig]] = {
    "LeNet on 16": (
        "Hopeless: the step is all launches and messages, which more devices do not make fewer.",
        ScalingConfig(model="lenet", per_machine=16),
    ),
    "ResNet-18 on 16": (
        "Worth it: a hundred times the bytes, but two hundred times the computing to share.",
        ScalingConfig(model="resnet18", per_machine=16),
    ),
    "ResNet-18 on 16, batch 4,096": (
        "Each device keeps 256 images, and the allreduce hides behind their backward pass.",
        ScalingConfig(model="resnet18", per_machine=16, growth="weak"),
    ),
    "The notes' way": (
        "All gradients into one device and back, when everything is computed.",
        ScalingConfig(model="resnet18", per_machine=16, algorithm="central", overlap="off"),
    ),
    "128 machines of 8": (
        "Weak scaling as far as it goes, over Ethernet.",
        ScalingConfig(model="resnet18", growth="weak", devices=1024, batch_size=58),
    ),
}
"""By what a button calls it: what it shows, and the config. 16 GPUs on PCIe in one machine."""
