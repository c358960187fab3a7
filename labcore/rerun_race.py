"""A race as a stand-alone script that repeats its numbers, to read and to take home.

Models, optimisers and engine are quoted from the lab's source; the loop around them is written out
in `TEMPLATE`, shorter than in the lab and with the same arithmetic. The data are in the script. A
test runs such scripts and compares.
"""

import zlib
from base64 import b64encode
from dataclasses import fields
from string import Template
from textwrap import wrap

import torch

from labcore.datasets import airfoil
from labcore.datasets.table import Table
from labcore.least_squares import half_mse, with_bias
from labcore.optimizers import Optimizer
from labcore.quoting import Quotes, import_block
from labcore.race import RaceConfig, Racer
from labcore.regression import ENGINES, EXPLODING, _minibatches, is_recorded, model_of

TEMPLATE = Template('''\
"""Repeats a race of the optimiser lab: same weights, minibatches and steps, so the same numbers.

$words

It needs torch and numpy, but nothing of the lab; the data are at its end. It prints the last loss
of each run, and writes all recorded losses to a file that is named:

    python this_script.py points.csv

The last digits depend on the processor and on the version of torch, which was $torch.
"""

$imports

Table = namedtuple("Table", "features labels")
RegressionSettings = RegressionConfig = namedtuple(
    "RegressionConfig", "optimizer objective model hidden_units batch_size epochs seed"
)


# The model, forward and backward


$model


def model_of(settings, data):
    """The model of this race."""
    return $model_name


# The optimisers


class Optimizer:
    """Hyperparameters, and the state with which an update rule begins."""

    state_names = ()

    def __init__(self, **hyperparameters):
        vars(self).update(hyperparameters)

    def initial_state(self, parameter):
        return tuple(torch.zeros_like(parameter) for _ in self.state_names)


$optimizers


# Who computes


$engine


# The race


$helpers


SETTINGS = RegressionConfig(
    optimizer=None,
    objective=$objective,
    model=$model_kind,
    hidden_units=$hidden_units,
    batch_size=$batch_size,
    epochs=$epochs,
    seed=$seed,
)
# By name: the optimisers of a run, each with the step from which on it updates the weights.
RACERS = {
$racers
}


def train(stages, data):
    """One run: step, epochs and loss (half the mean squared error) wherever the lab records it.

    The last loss of a run that diverges is infinite.
    """
    rows, changes = len(data.labels), dict(stages)
    engine = $engine_name(SETTINGS._replace(optimizer=stages[0][1]), data)
    model, inputs = model_of(SETTINGS, data), with_bias(data.features)

    def measured():
        return half_mse(model.predict(engine.weights().double(), inputs) - data.labels)

    step, loss = 0, measured()
    yield step, 0.0, loss
    shuffles = random_stream(SETTINGS.seed, ORDER)
    for epoch in range(SETTINGS.epochs):
        seen = 0
        for some, labels in _minibatches(engine.inputs, engine.labels, SETTINGS, shuffles):
            if step in changes:
                engine.change(changes[step])
            minibatch_loss = engine.step(some, labels)
            step, before, seen = step + 1, seen, seen + len(labels)
            due = is_recorded(before, seen, rows) or minibatch_loss > $exploding
            if due:
                loss = measured()
            if not (math.isfinite(minibatch_loss) and math.isfinite(loss)):
                yield step, epoch + seen / rows, math.inf
                return
            if due:
                yield step, epoch + seen / rows, loss


def unpacked():
    """The standardised columns, the label last, exactly as the lab has them."""
    content = np.frombuffer(zlib.decompress(base64.b64decode(DATA)), "<f8").reshape($columns, -1)
    table = torch.tensor(content)
    return Table(table[:-1].T.contiguous(), table[-1])


def main():
    torch.set_num_threads(1)
    data, lines = unpacked(), [("racer", "step", "epochs", "loss")]
    for name, stages in RACERS.items():
        lines += ((name, *point) for point in train(stages, data))
        _, step, _, loss = lines[-1]
        end = f"loss {loss:.8f} after" if math.isfinite(loss) else "diverged at"
        print(f"{name}: {end} step {step}")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)


DATA = """
$content
"""

if __name__ == "__main__":
    main()
''')
PROVIDED = {"Table", "RegressionSettings", "RegressionConfig", "Optimizer", "model_of", "Model"}
"""What `TEMPLATE` defines in short for what is quoted."""
IMPORTS = {
    ("", "base64"),
    ("", "csv"),
    ("", "math"),
    ("", "sys"),
    ("", "zlib"),
    ("collections", "namedtuple"),
    ("", "numpy as np"),
    ("", "torch"),
}
"""What `TEMPLATE` imports, as in `Quotes.imports`."""
ENGINE = {"__init__", "step", "change", "weights"}
"""Members of an engine that the script uses."""
RULES = {"torch": {"twin"}, "from scratch": {"update", "state_names"}}
"""By engine, the members of an optimiser that it uses."""


def race_script(config: RaceConfig, data: Table | None = None) -> str:
    """A Python program that repeats a race, forks included, and prints every racer's last loss.

    It needs torch and numpy, and nothing of the lab; the data are in it.

    Args:
        config: the race.
        data: on which it was run; the airfoil data if left out.
    """
    table = airfoil.load() if data is None else data
    quotes = Quotes(PROVIDED)
    engine, model = ENGINES[config.engine], model_of(config, table)
    units = ", settings.hidden_units" if config.model == "hidden" else ""
    quoted = {
        "model": quotes.quote(type(model)),
        "optimizers": _optimizers(quotes, config),
        "engine": quotes.quote_class(engine, ENGINE),
        "helpers": _quoted(quotes, is_recorded, _minibatches, half_mse, with_bias),
    }
    return TEMPLATE.substitute(
        quoted,
        imports=import_block(quotes.imports | IMPORTS),
        words=_words(config, table),
        torch=torch.__version__,
        model_name=f"{type(model).__name__}(data.features.shape[1]{units})",
        objective=repr(config.objective),
        model_kind=repr(config.model),
        hidden_units=config.hidden_units,
        batch_size=config.batch_size,
        epochs=config.epochs,
        seed=config.seed,
        racers="\n".join(map(_racer, config.racers)),
        engine_name=engine.__name__,
        exploding=EXPLODING,
        columns=table.features.shape[1] + 1,
        content="\n".join(wrap(_packed(table), 98)),
    )


def _quoted(quotes: Quotes, *functions: object) -> str:
    """What of these is not quoted yet."""
    texts = [quotes.quote(each) for each in functions if callable(each)]
    return "\n\n\n".join(filter(None, texts))


def _optimizers(quotes: Quotes, config: RaceConfig) -> str:
    """The classes of the optimisers in a race, each with what its engine uses of it."""
    kinds = dict.fromkeys(
        type(optimizer) for racer in config.racers for _, optimizer in _stages(racer)
    )
    texts = [quotes.quote_class(kind, RULES[config.engine]) for kind in kinds]
    return "\n\n\n".join(filter(None, texts))


def _stages(racer: Racer) -> list[tuple[int, Optimizer]]:
    """A racer's optimisers, each with the step from which on it updates the weights.

    The first one comes with -1, a step that no run passes: the run begins with it.
    """
    optimizers = [*(stage.optimizer for stage in racer.before), racer.optimizer]
    return list(zip([-1, *(stage.until for stage in racer.before)], optimizers, strict=True))


def _racer(racer: Racer) -> str:
    stages = ", ".join(
        f"({step}, {type(optimizer).__name__}({_settings(optimizer)}))"
        for step, optimizer in _stages(racer)
    )
    return f"    {racer.name!r}: [{stages}],"


def _settings(optimizer: Optimizer) -> str:
    return ", ".join(f"{each.name}={getattr(optimizer, each.name)!r}" for each in fields(optimizer))


def _packed(table: Table) -> str:
    """Columns, the label last, as float64 of little-endian order, compressed, in letters."""
    columns = torch.cat([table.features, table.labels.unsqueeze(1)], dim=1).T.contiguous()
    content = columns.numpy().astype("<f8").tobytes()
    return b64encode(zlib.compress(content, 9)).decode()


def _words(config: RaceConfig, table: Table) -> str:
    racers = "1 run" if len(config.racers) == 1 else f"{len(config.racers)} runs"
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs:,} epochs"
    # A file's name may hold what would end the docstring.
    title = table.title.replace("\\", "").replace('"', "'").replace("$", "")
    return f"{racers} of {epochs} on {title}, {len(table.labels):,} rows."
