"""A classification run as a stand-alone script that repeats its numbers, to read and to take home.

Model, initialisation, split, allreduce and the choice of images are quoted from the lab's source;
the loop around them is written out in `TEMPLATE`, shorter than in the lab and with the same
arithmetic. A test runs such scripts and compares.
"""

import shlex
from string import Template

import torch

from labcore.classification import ClassificationConfig
from labcore.collectives import ALLREDUCE
from labcore.config import ConfigError, format_fields
from labcore.datasets.fashion_mnist import first_of_each_class
from labcore.evaluation import EVALUATED_AT_ONCE
from labcore.flags import flag_name
from labcore.models import INITIALISATIONS, MODELS
from labcore.quoting import Quotes, import_block
from labcore.replicas import _view
from labcore.splitting import PARTITIONS

TEMPLATE = Template('''\
"""Repeats a run of the optimiser lab: the same weights, minibatches and steps, so the same numbers.

$words In the lab this run is

    python -m labcore classify $flags

To repeat it, with torch and numpy but nothing of the lab, name the folder that holds the four files
of Fashion-MNIST, plain or gzipped:

    python this_script.py FOLDER

The last digits depend on the processor, the number of threads and the version of torch, which was
$torch.
"""

$imports

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else $folder)
IMAGES, TEST_IMAGES, EPOCHS, SEED = $images, $test_images, $epochs, $seed
WORLD_SIZE, BATCH_SIZE, LR, MOMENTUM = $world_size, $batch_size, $lr, $momentum
WARMUP = $warmup  # steps in which the learning rate rises from one device's to LR


# The images


def read(name):
    """A file of the data set: uint8, in the shape that its header gives."""
    file = FOLDER / name if (FOLDER / name).exists() else FOLDER / f"{name}.gz"
    if not file.exists():
        sys.exit(f"{file} is missing. Name the folder that holds Fashion-MNIST's four files.")
    content = file.read_bytes()
    if content[:2] == b"\\x1f\\x8b":
        content = gzip.decompress(content)
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    return torch.tensor(np.frombuffer(content, np.uint8, offset=start).reshape(shape))


$rows


# The model, and how its weights start


$build


$fill


def initialise(model, generator):
    """Draw the weights in the order of the parameters; biases are 0, batch norms scale by 1."""
    scales = {id(each.weight) for each in model.modules() if isinstance(each, nn.BatchNorm2d)}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0 if id(parameter) in scales else 0.0)
            if parameter.dim() > 1:
                fill(drawn := torch.empty(parameter.shape), generator)
                parameter.copy_(drawn)


# Which rows of a minibatch each replica takes, and how the gradients are summed


$split


Send = namedtuple("Send", "src dst chunk op", defaults=["reduce"])
Phase = namedtuple("Phase", "name why rounds")
Schedule = namedtuple("Schedule", "world_size chunks phases")


$allreduce


def play(schedule, vectors):
    """Execute a schedule in place; all sends of a round happen at once."""
    cells = [vector.tensor_split(schedule.chunks) for vector in vectors]
    for sends in [sends for phase in schedule.phases for sends in phase.rounds]:
        carried = [cells[send.src][send.chunk].clone() for send in sends]
        for send, values in zip(sends, carried):
            own = cells[send.dst][send.chunk]
            own.copy_(values) if send.op == "copy" else own.add_(values.to(own.device))


# Training


$view


class Replica:
    """A copy of the model whose parameters and gradients are views of one flat vector each."""

    def __init__(self, device):
        self.device, self.model = device, build().to(device)
        size, start = sum(each.numel() for each in self.model.parameters()), 0
        self.flat, self.gradient, self.velocity = (torch.zeros(size).to(device) for _ in range(3))
        for parameter in self.model.parameters():
            piece = slice(start, start := start + parameter.numel())
            parameter.data = _view(self.flat[piece], parameter.shape)
            parameter.grad = _view(self.gradient[piece], parameter.shape)

    def logits(self, images):
        pixels = images.to(self.device).unsqueeze(1)
        return self.model(pixels.to(torch.float32, memory_format=torch.channels_last).div_(255))

    def backward(self, images, labels):
        """Gradients of the sum of a shard's losses, into `gradient`; returns the sum."""
        self.gradient.zero_()
        if len(labels) == 0:
            return 0.0
        loss = F.cross_entropy(self.logits(images), labels.to(self.device), reduction="sum")
        loss.backward()
        return loss.item()

    def update(self, batch_size, lr):
        """One SGD step along the summed gradient, divided by the size of the minibatch."""
        self.velocity.mul_(MOMENTUM).add_(self.gradient, alpha=1 / batch_size)
        self.flat.add_(self.velocity, alpha=-lr)


def train(replicas, images, labels, step):
    """One data-parallel step on a minibatch; returns the sum of its losses."""
    least = LR / WORLD_SIZE
    lr = LR if step >= WARMUP else least + (LR - least) * step / WARMUP
    shards = [list(rows) for rows in $split_name(len(labels), len(replicas))]
    losses = [each.backward(images[s], labels[s]) for each, s in zip(replicas, shards)]
    play($allreduce_name(len(replicas)), [each.gradient for each in replicas])
    for each in replicas:
        each.update(len(labels), lr)
    return sum(losses)


def test(replica, images, labels):
    """Share of the images that are classified right, with running statistics in batch norms."""
    replica.model.eval()
    with torch.no_grad():
        parts = [replica.logits(some).cpu().softmax(1) for some in images.split($at_once)]
    replica.model.train()
    return (torch.cat(parts).argmax(1) == labels).sum().item() / len(labels)


torch.set_num_threads($threads)
images, test_images = read("train-images-idx3-ubyte"), read("t10k-images-idx3-ubyte")
labels, test_labels = read("train-labels-idx1-ubyte").long(), read("t10k-labels-idx1-ubyte").long()
if len(images) < IMAGES:
    sys.exit(f"The run had {IMAGES:,} training images; {FOLDER} has only {len(images):,}.")
rows, test_rows = first_of_each_class(labels, IMAGES), first_of_each_class(test_labels, TEST_IMAGES)

gpus = torch.cuda.device_count()
replicas = [Replica(f"cuda:{n % gpus}" if gpus else "cpu") for n in range(WORLD_SIZE)]
initialise(replicas[0].model, torch.Generator().manual_seed(2 * SEED))
for other in replicas[1:]:
    other.flat.copy_(replicas[0].flat)
order = torch.Generator().manual_seed(2 * SEED + 1)
step = 0
for epoch in range(1, EPOCHS + 1):
    total = 0.0
    for some in rows[torch.randperm(IMAGES, generator=order)].split(BATCH_SIZE):
        total += train(replicas, images[some], labels[some], step)
        step += 1
        if not math.isfinite(total):
            sys.exit(f"The loss stopped being finite in epoch {epoch}.")
    accuracy = test(replicas[0], test_images[test_rows], test_labels[test_rows])
    print(f"epoch {epoch}: mean loss {total / IMAGES:.6f}, test accuracy {accuracy:.4f}")
''')
UP_TO_ROUNDING = """\
The run had another engine: this script has its replicas in one process, and so adds the same
numbers in another order. They are those of the run up to rounding."""
PROVIDED = {"Send", "Phase", "Schedule"}
"""What `TEMPLATE` defines in short for the quoted allreduce."""
IMPORTS = {
    ("", "gzip"),
    ("", "math"),
    ("", "struct"),
    ("", "sys"),
    ("collections", "namedtuple"),
    ("pathlib", "Path"),
    ("", "numpy as np"),
    ("", "torch"),
    ("torch", "nn"),
    ("torch.nn", "functional as F"),
}
"""What `TEMPLATE` imports, as in `Quotes.imports`."""


def script(config: ClassificationConfig, folder: str = "FashionMNIST/raw") -> str:
    """A Python program that repeats a run and prints mean loss and test accuracy of each epoch.

    It needs torch and numpy, and nothing of the lab; the images come from the folder that it is
    given on its command line. Whatever the engine, it has logical replicas in one process.

    Args:
        config: the run.
        folder: where it looks for the images if it is given none.

    Raises:
        ConfigError: no script can repeat it; see `why_no_script`.
    """
    if problem := why_no_script(config):
        raise ConfigError(problem)
    quotes = Quotes(PROVIDED)
    split, algorithm = PARTITIONS[config.split], ALLREDUCE[config.allreduce]
    quoted = {
        "rows": quotes.quote(first_of_each_class),
        "build": quotes.quote_as("build", MODELS[config.model].build),
        "fill": quotes.quote_as("fill", INITIALISATIONS[config.initialisation].fill),
        "split": quotes.quote(split),
        "allreduce": quotes.quote(algorithm),
        "view": quotes.quote(_view),
    }
    return TEMPLATE.substitute(
        quoted,
        imports=import_block(quotes.imports | IMPORTS),
        words=_words(config),
        flags=_flags(config),
        torch=torch.__version__,
        folder=repr(folder),
        images=config.images,
        test_images=config.test_images,
        epochs=config.epochs,
        seed=config.seed,
        world_size=config.replicas,
        batch_size=config.global_batch,
        lr=config.global_lr,
        warmup=config.warmup_epochs * config.steps_per_epoch,
        momentum=config.momentum,
        split_name=split.__name__,
        allreduce_name=algorithm.__name__,
        at_once=EVALUATED_AT_ONCE,
        threads=torch.get_num_threads(),
    )


def why_no_script(config: ClassificationConfig) -> str | None:
    """Why no script repeats a run, None if one does."""
    if config.batch_norm == "local":
        return None
    return (
        "A script has batch norm over each shard, since its replicas share one process; received "
        f"{config.batch_norm}. Try a run with batch norm local."
    )


def _words(config: ClassificationConfig) -> str:
    devices = "1 device" if config.replicas == 1 else f"{config.replicas} devices"
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    words = f"{MODELS[config.model].label} on {devices}, {config.images:,} images, {epochs}."
    if config.engine == "logical":
        return words
    return f"{words}\n{UP_TO_ROUNDING}"


def _flags(config: ClassificationConfig) -> str:
    """The settings that are not the defaults, as on the lab's command line."""
    defaults = format_fields(ClassificationConfig())
    texts = format_fields(config).items()
    given = [(flag_name(name), text) for name, text in texts if text != defaults[name]]
    return shlex.join(part for pair in given for part in pair)
