"""The command line, as users and scripts meet it: in a pipe, on a terminal, with signals."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from labcore import __main__ as cli
from labcore import report, signals
from labcore.classification import ClassificationConfig, train_classifier
from labcore.config import Choice, number, ruled_fields
from labcore.datasets.download import Progress
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import EMBEDDED, FashionMNIST
from labcore.events import (
    Checkpointed,
    ClassificationEvent,
    ClassifierTrained,
    EpochEvaluated,
    Event,
    Finished,
    MinibatchTrained,
    ProcessesAwaited,
    Resumed,
    ShardDone,
    Started,
    StepTaken,
)
from labcore.events import ImagesTested as ImagesSeen  # pytest collects what is named Test…
from labcore.flags import flag_name
from labcore.optimizers import OPTIMIZERS, SGD, Adam
from labcore.regression import RegressionConfig, RegressionSettings, train_regression

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "labcore"]
# Buffered, as Python is by itself: what is left in a buffer can make noise at the very end.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
ENDLESS = ["regression", "--epochs", "10000"]
SHORT = ["regression", "--epochs", "1", "--batch-size", "300"]
TINY = ["classify", "--images", "100", "--batch-size", "50", "--epochs", "2", "--replicas", "2"]
TINY_CONFIG = ClassificationConfig(images=100, batch_size=50, epochs=2, replicas=2)
DIVERGING = [
    *("classify", "--model", "resnet18_quarter", "--lr", "100", "--images", "100"),
    *("--epochs", "20", "--replicas", "1"),
]


def lines(text: str) -> list[dict[str, Any]]:
    """JSON lines, read strictly."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def start(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=pipe,
        stderr=pipe,
        encoding="utf-8",
    )


class Terminal(io.StringIO):
    """A stream that passes for a terminal."""

    def isatty(self) -> bool:
        return True


def status_of(arguments: list[str]) -> int | str | None:
    try:
        return cli.main(arguments)
    except SystemExit as exit:
        return exit.code


def on_terminal(*arguments: str) -> tuple[int, str]:
    """The exit status and everything shown by a run whose stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        # Linux reports the far end's closing as an input/output error.
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            pass
    os.close(ours)
    return process.returncode, shown.decode()


@pytest.fixture(scope="module")
def piped() -> subprocess.CompletedProcess[str]:
    settings = ["--batch-size", "50", "--engine", "from scratch"]
    optimizer = ["adam", "--lr", "0.02", "--beta1", "0.8"]
    return subprocess.run(
        [*COMMAND, "regression", *settings, *optimizer],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


CONFIG = RegressionConfig(batch_size=50, engine="from scratch", optimizer=Adam(lr=0.02, beta1=0.8))


# JSON lines


def test_a_finished_run_exits_with_0(piped: subprocess.CompletedProcess[str]) -> None:
    assert piped.returncode == 0


def test_a_piped_run_says_nothing_on_stderr(piped: subprocess.CompletedProcess[str]) -> None:
    assert piped.stderr == ""


def test_the_first_line_is_the_config(piped: subprocess.CompletedProcess[str]) -> None:
    settings = {each.name: getattr(CONFIG, each.name) for each, _ in ruled_fields(type(CONFIG))}
    optimizer = {"name": "adam", "lr": 0.02, "beta1": 0.8, "beta2": 0.999, "eps": 1e-8}
    assert lines(piped.stdout)[0] == {
        "event": "config",
        "name": "regression",
        **settings,
        "optimizer": optimizer,
        "before": [],
    }


def test_the_events_are_those_of_the_run_in_their_order(
    piped: subprocess.CompletedProcess[str],
) -> None:
    run = [type(event).__name__ for event in train_regression(CONFIG)]
    expected = [name for name in run if name != "StepTaken"]
    names = [line["event"].title().replace("_", "") for line in lines(piped.stdout)]
    assert names == ["Config", *expected]


def test_the_final_loss_is_that_of_the_run(piped: subprocess.CompletedProcess[str]) -> None:
    *_, finished = train_regression(CONFIG)
    assert isinstance(finished, Finished)
    assert lines(piped.stdout)[-1]["loss"] == finished.loss


def test_steps_are_written_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*SHORT, "--steps"])
    events = lines(capsys.readouterr().out)
    assert [line["step"] for line in events if line["event"] == "step_taken"] == [1, 2, 3, 4, 5]


def test_an_unknown_floor_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*SHORT, "--model", "hidden"])
    assert lines(capsys.readouterr().out)[1]["floor"] is None


def test_every_line_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []

    class Stdout(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue().count("\n"))

    monkeypatch.setattr(sys, "stdout", Stdout())
    cli.main(SHORT)
    assert set(flushed) == set(range(1, flushed[-1] + 1))


def test_a_loss_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        report.write({"loss": float("nan")})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_runs_by_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*SHORT, name])
    first, *_, last = lines(capsys.readouterr().out)
    assert (first["optimizer"]["name"], last["event"]) == (name, "finished")


def test_a_new_optimizer_is_a_new_subcommand_with_its_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass(frozen=True)
    class Slow(SGD):
        """SGD with a brake."""

        name = "slow"
        brake: float = number("brake", 2.0, 1.0, 9.0, help="Stronger is slower.")

    monkeypatch.setitem(OPTIMIZERS, "slow", Slow)
    cli.main([*SHORT, "slow", "--brake", "3"])
    assert lines(capsys.readouterr().out)[0]["optimizer"] == {
        "name": "slow",
        "lr": 0.01,
        "brake": 3.0,
    }


def test_settings_may_follow_the_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["regression", "--epochs", "1", "adam", "--batch-size", "300"])
    assert lines(capsys.readouterr().out)[0]["batch_size"] == 300


def test_without_a_name_hyperparameters_are_those_of_sgd(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli.main([*SHORT, "--lr", "0.03"])
    assert lines(capsys.readouterr().out)[0]["optimizer"] == {"name": "sgd", "lr": 0.03}


# Classification as JSON lines


@pytest.fixture(scope="module")
def tiny() -> list[ClassificationEvent]:
    return list(train_classifier(TINY_CONFIG))


def test_classify_begins_with_the_config_and_the_source_of_the_images(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*TINY, "--data-dir", str(EMBEDDED)]) == 0
    first = lines(capsys.readouterr().out)[0]
    source = first.pop("source")
    assert first == {"event": "config", "name": "classify", **asdict(TINY_CONFIG)}
    assert source.endswith(f"in {EMBEDDED})")


def test_classify_writes_minibatches_and_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(TINY)
    epoch = ["minibatch_trained", "minibatch_trained", "epoch_evaluated"]
    names = [line["event"] for line in lines(capsys.readouterr().out)]
    assert names == ["config", "started", *epoch, *epoch, "classifier_trained"]


def test_classify_writes_every_step_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*TINY, "--steps"])
    step = ["shard_done"] * 4 + ["minibatch_trained", "step_taken"]
    epoch = [*step, *step, "images_tested", "epoch_evaluated"]
    names = [line["event"] for line in lines(capsys.readouterr().out)]
    assert names == ["config", "started", *epoch, *epoch, "classifier_trained"]


def test_the_losses_of_classify_are_those_of_the_run(
    tiny: list[ClassificationEvent], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(TINY)
    written = [line["loss"] for line in lines(capsys.readouterr().out) if "loss" in line]
    assert written == [event.loss for event in tiny if isinstance(event, MinibatchTrained)]


def test_the_accuracies_of_classify_are_those_of_the_run(
    tiny: list[ClassificationEvent], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(TINY)
    written = [line["accuracy"] for line in lines(capsys.readouterr().out) if "accuracy" in line]
    kinds = (EpochEvaluated, ClassifierTrained)
    assert written == [event.accuracy for event in tiny if isinstance(event, kinds)]


def test_a_diverged_classification_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(DIVERGING) == 3
    assert lines(capsys.readouterr().out)[-1]["event"] == "diverged"


def test_every_choice_of_classify_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(
        config: ClassificationConfig, data: FashionMNIST, **others: object
    ) -> Iterator[Event]:
        return
        yield

    monkeypatch.setattr(cli, "train_classifier", train)
    for each, rule in ruled_fields(ClassificationConfig):
        for option in rule.options if isinstance(rule, Choice) else ():
            # Only processes can synchronise their batch norms.
            with_it = ["--engine", "processes"] if option == "synchronised" else []
            assert cli.main(["classify", flag_name(each.name), option, *with_it]) == 0
            assert lines(capsys.readouterr().out)[0][each.name] == option


# The list of optimisers


def test_the_list_has_every_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["optimizers"])
    assert [line["name"] for line in lines(capsys.readouterr().out)] == list(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_list_has_every_hyperparameter(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["optimizers"])
    listed = {line["name"]: line for line in lines(capsys.readouterr().out)}[name]
    defaults = {key: facts["default"] for key, facts in listed["hyperparameters"].items()}
    assert defaults == asdict(OPTIMIZERS[name]())


# Where the images are


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The lab's cache folder as torchvision's raw folder, still to be made."""
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path))
    return tmp_path / "FashionMNIST" / "raw"


def test_data_lists_every_place_in_the_order_of_the_search(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data"]) == 0
    folders = [line["folder"] for line in lines(capsys.readouterr().out)]
    assert (folders[0], folders[-1]) == (str(cache), str(EMBEDDED))


def test_data_says_what_is_there(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["data"])
    states = [line["state"] for line in lines(capsys.readouterr().out)]
    assert states in (["absent", "used", "found"], ["absent", "absent", "used"])


def test_data_counts_the_images(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["data", "--data-dir", str(EMBEDDED)])
    assert lines(capsys.readouterr().out) == [
        {
            "state": "used",
            "origin": "the folder you named",
            "folder": str(EMBEDDED),
            "train": 6000,
            "test": 1000,
        }
    ]


def test_data_on_a_terminal_is_a_list(cache: Path, shown_by: Callable[..., str]) -> None:
    first, *_, last = shown_by("data").splitlines()
    assert first == f"absent    the lab's cache folder ({cache})"
    assert last.endswith(f"the embedded sample ({EMBEDDED}): 6,000 + 1,000 images")


def test_data_with_a_folder_that_lacks_a_file_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "--data-dir", str(tmp_path)]) == 4
    [message] = capsys.readouterr().err.splitlines()
    assert f"The data file {tmp_path}/train-images-idx3-ubyte is missing" in message


def test_data_that_cannot_be_used_is_listed_with_the_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["data", "--data-dir", str(tmp_path)])
    [line] = lines(capsys.readouterr().out)
    assert (line["state"], "is missing" in line["problem"]) == ("unusable", True)


@pytest.mark.parametrize(("flags", "folder"), [([], ""), (["--data-dir", "/srv/x"], "/srv/x")])
def test_data_downloads_on_request_into_the_folder_named(
    flags: list[str], folder: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(cli, "download", lambda progress, folder: asked.append(folder))
    cli.main(["data", "--download", *flags])
    assert asked == [folder]


def test_data_downloads_nothing_by_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cli, "download")
    assert cli.main(["data"]) == 0


def test_a_download_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(progress: Progress, folder: str) -> None:
        progress(0, 30_000_000)
        progress(12_000_000, 30_000_000)

    monkeypatch.setattr(cli, "download", fetch)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    cli._download("")
    assert re.search(r"40%\|.*12.0M/30.0M", terminal.getvalue())


def test_a_failed_download_exits_with_4_and_its_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(progress: Progress, folder: str) -> None:
        progress(0, 30_000_000)
        raise DataError("There is no network.")

    monkeypatch.setattr(cli, "download", fetch)
    assert cli.main(["data", "--download"]) == 4
    assert capsys.readouterr() == ("", "There is no network.\n")


# Help


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_help_gives_flag_range_and_default_of_every_field(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["regression", name, "--help"]) == 0
    shown = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
    entries = {entry.split()[0]: entry for entry in shown.split(" --")}
    for each, rule in ruled_fields(RegressionSettings) + ruled_fields(OPTIMIZERS[name]):
        entry = entries[each.name.replace("_", "-")]
        # Lines also break after the comma of a number.
        expected = f"{each.metadata['help']} ({rule}; default {rule.default})"
        assert expected.replace(" ", "") in entry.replace(" ", "")


def test_help_gives_flag_range_and_default_of_every_field_of_classify(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(["classify", "--help"]) == 0
    shown = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
    entries = {entry.split()[0]: entry for entry in shown.split(" --")}
    for each, rule in ruled_fields(ClassificationConfig):
        entry = entries[each.name.replace("_", "-")]
        # Lines also break after the comma of a number.
        expected = f"{each.metadata['help']} ({rule}; default {rule.default})"
        assert expected.replace(" ", "") in entry.replace(" ", "")


def test_help_explains_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    status_of(["--help"])
    shown = capsys.readouterr().out
    statuses = re.findall(r"(?:: |; )(\d+) ", shown)
    assert statuses == ["0", "1", "2", "3", "4", "5", "130", "141", "143"]


def test_importing_it_leaves_the_heavy_packages_out() -> None:
    program = (
        "import sys, labcore.__main__; "
        "print(sorted({'torchvision', 'streamlit', 'altair', 'pandas'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60)
    assert run.stdout.decode().strip() == "[]"


# Wrong arguments


BAD_VALUES = [
    ("--lr", "0", "from 1e-06 to 10"),
    ("--lr", "-0.1", "from 1e-06 to 10"),
    ("--lr", "nan", "from 1e-06 to 10"),
    ("--lr", "inf", "from 1e-06 to 10"),
    ("--lr", "1e9", "from 1e-06 to 10"),
    ("--batch-size", "0", "from 1 to 1500"),
    ("--batch-size", "1501", "from 1 to 1500"),
    ("--batch-size", "abc", "a whole number"),
    ("--batch-size", "2.5", "a whole number"),
    ("--epochs", "0", "from 1 to 10000"),
    ("--epochs", "10001", "from 1 to 10000"),
    ("--engine", "jax", "torch, from scratch"),
]


@pytest.mark.parametrize(("flag", "value", "allowed"), BAD_VALUES)
def test_a_bad_value_exits_with_2(flag: str, value: str, allowed: str) -> None:
    assert status_of(["regression", flag, value]) == 2


@pytest.mark.parametrize(("flag", "value", "allowed"), BAD_VALUES)
def test_a_bad_value_gets_one_line_with_field_value_and_rule(
    flag: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status_of(["regression", flag, value])
    [message] = capsys.readouterr().err.splitlines()
    field = flag.removeprefix("--").replace("-", "_")
    assert re.search(rf": {field} must .*{allowed}.*received '{value}'", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nonsense"],
            "command must .*regression, classify, sweep, .*, data; received 'nonsense'",
        ),
        (["regression", "adamm"], "optimizer must .*adam, adamw; received 'adamm'"),
        (["regression", "adam", "sgd"], "optimizer must be at most one .*received 'sgd'"),
        (["regression", "--speed", "3"], "flag must .*--epochs, .*received '--speed'"),
        (["regression", "adam", "--momentum", "0.9"], "flag .*--beta1.*received '--momentum'"),
        (["regression", "momentum", "--momentum", "1.5"], "0 to 0.9999; received '1.5'"),
        (["classify", "--images", "59999.5"], "whole number from 100 .*received '59999.5'"),
        (["classify", "--batch-size", "0"], "batch_size must .*received '0'"),
        (["classify", "--lr", "nan"], "lr must .*received 'nan'"),
        (["classify", "--replicas", "17"], "replicas must .*from 1 to 16; received '17'"),
        (["classify", "--images", "100", "--batch-size", "101"], "^classify: .*101 of 100. Try"),
        (["classify", "--replicas", "9", "--batch-size", "8"], "^classify: .*9 devices for 8"),
        (["classify", "adam"], "argument must be left out; received 'adam'"),
        (["data", "adam"], "argument must be left out; received 'adam'"),
        (["data", "--lr", "1"], "flag must .*--download, --data-dir, --json; received '--lr'"),
        (["optimizers", "adam"], "argument must be left out; received 'adam'"),
        (["regression", "--lr"], "Missing value for argument '--lr'"),
        ([], "Expected one of {regression, classify, sweep, fair-race, optimizers, data}"),
    ],
)
def test_wrong_arguments_are_explained_on_stderr(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    assert re.search(message, capsys.readouterr().err)


def test_settings_that_do_not_go_together_get_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status_of(["classify", "--images", "100", "--batch-size", "101"])
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_nothing_is_run_with_an_unknown_flag(capsys: pytest.CaptureFixture[str]) -> None:
    status_of([*SHORT, "--speed", "3"])
    assert capsys.readouterr().out == ""


def test_every_choice_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    for each, rule in ruled_fields(RegressionSettings):
        for option in rule.options if isinstance(rule, Choice) else ():
            status_of([*SHORT, "--" + each.name.replace("_", "-"), option])
            assert lines(capsys.readouterr().out)[0][each.name] == option


def test_a_wrong_value_ends_the_process_without_a_traceback() -> None:
    with start("regression", "--lr", "0") as process:
        _, message = process.communicate(timeout=60)
    assert (process.returncode, len(message.splitlines())) == (2, 1)


# How a run ends


def test_a_diverged_run_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regression", "--lr", "10"]) == 3
    assert lines(capsys.readouterr().out)[-1]["event"] == "diverged"


def test_a_data_error_exits_with_4_and_its_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: RegressionConfig) -> Iterator[Event]:
        raise DataError("The file is damaged.")
        yield

    monkeypatch.setattr(cli, "train_regression", train)
    assert cli.main(SHORT) == 4
    assert capsys.readouterr().err == "The file is damaged.\n"


def test_more_images_than_there_are_exit_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["classify", "--images", "59999", "--data-dir", str(EMBEDDED)]) == 4
    [message] = capsys.readouterr().err.splitlines()
    assert "must be from 1 to 6,000; received 59,999" in message


def test_a_folder_without_images_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["classify", "--data-dir", str(tmp_path)]) == 4
    assert "train-images-idx3-ubyte is missing" in capsys.readouterr().err


def test_an_internal_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: RegressionConfig) -> Iterator[Event]:
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(cli, "train_regression", train)
    with pytest.raises(ZeroDivisionError):
        cli.main(SHORT)


def test_a_run_is_closed_before_the_command_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = []

    def endless(config: RegressionConfig) -> Iterator[Event]:
        try:
            while True:
                yield Started(1, 1, None, None)
        finally:
            closed.append(True)

    # A reference that outlives the command: nothing is left to the garbage collector.
    run = endless(RegressionConfig())
    monkeypatch.setattr(cli, "train_regression", lambda config: run)
    with (tmp_path / "stdout").open("w") as stand_in:

        class ClosedPipe(io.StringIO):
            def write(self, text: str) -> int:
                if "started" in text:
                    raise BrokenPipeError
                return len(text)

            def fileno(self) -> int:
                return stand_in.fileno()

        monkeypatch.setattr(sys, "stdout", ClosedPipe())
        cli.main(SHORT)
    assert closed == [True]


@pytest.mark.parametrize(
    ("number", "status", "farewell"),
    [(signal.SIGINT, 130, "Interrupted.\n"), (signal.SIGTERM, 143, "Terminated.\n")],
)
def test_a_signal_ends_a_run_with_one_line(
    number: signal.Signals, status: int, farewell: str
) -> None:
    with start(*ENDLESS) as process:
        assert process.stdout is not None
        while '"loss_recorded"' not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
    assert (process.returncode, message) == (status, farewell)


def test_a_signal_in_the_middle_of_a_slow_step_ends_it_with_one_line() -> None:
    slow = ["--model", "resnet18", "--images", "100", "--batch-size", "100", "--steps"]
    with start("classify", *slow) as process:
        assert process.stdout is not None
        while '"shard_done"' not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, message = process.communicate(timeout=60)
    assert (process.returncode, message) == (130, "Interrupted.\n")
    assert '"step_taken"' not in out


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[signal.Signals, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    with pytest.raises(signals.Stopped):
        signals.stop(signal.SIGTERM, None)
    assert handlers == {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}


@pytest.mark.parametrize("arguments", [ENDLESS, ["regression", "--help"]], ids=["run", "help"])
def test_a_closed_pipe_ends_it_quietly(arguments: list[str]) -> None:
    with start(*arguments) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is not here")
@pytest.mark.parametrize(
    "arguments", [ENDLESS, ["regression", "--help"], ["optimizers"]], ids=["run", "help", "list"]
)
def test_a_full_disk_for_the_output_is_a_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "labcore", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 5
    assert done.stderr == "No space left on device: free some, or write elsewhere.\n"


def test_a_run_without_an_output_runs() -> None:
    command = f"{sys.executable} -m labcore regression --epochs 1 >&-"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert cli.main(["classify", "--engine", "processes", "--timeout", seconds]) == 2
    rule = f"timeout must be a finite number of seconds from 0; received {float(seconds)}"
    assert rule in capsys.readouterr().err


# On a terminal


@pytest.fixture(scope="module")
def shown() -> tuple[int, str]:
    return on_terminal("regression", "--epochs", "4")


def test_a_terminal_shows_a_bar_with_steps_and_loss(shown: tuple[int, str]) -> None:
    assert re.search(r"100%\|█+\| 600/600 .* steps/s, ½ MSE 0\.2\d+", shown[1])


def test_a_terminal_shows_a_summary(shown: tuple[int, str]) -> None:
    *_, finished = train_regression(RegressionConfig(epochs=4))
    assert isinstance(finished, Finished)
    assert f"final ½ MSE       {finished.loss:.6g}" in shown[1]


def test_a_terminal_shows_no_json(shown: tuple[int, str]) -> None:
    assert '{"event"' not in shown[1]


@pytest.fixture
def shown_by(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What arguments show on a stdout that passes for a terminal."""

    def run(*arguments: str) -> str:
        # Not before: pytest exchanges stdout between a fixture's setup and the test.
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        cli.main(arguments)
        return capsys.readouterr().out

    return run


def test_json_on_a_terminal_on_request(shown_by: Callable[..., str]) -> None:
    assert lines(shown_by(*SHORT, "--json"))[-1]["event"] == "finished"


def test_a_summary_gives_the_distance_to_the_minimum(shown_by: Callable[..., str]) -> None:
    started, *_, finished = train_regression(RegressionConfig(epochs=1, batch_size=300))
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert started.floor is not None
    assert f"above the minimum {finished.loss - started.floor:.3g} " in shown_by(*SHORT)


def test_a_summary_is_silent_on_an_unknown_minimum(shown_by: Callable[..., str]) -> None:
    shown = shown_by(*SHORT, "--model", "hidden")
    assert "final ½ MSE" in shown
    assert "minimum" not in shown


def test_a_terminal_shows_why_a_run_diverged(shown_by: Callable[..., str]) -> None:
    *_, diverged = train_regression(RegressionConfig(optimizer=SGD(lr=10.0)))
    assert shown_by("regression", "--lr", "10") == f"{diverged}\n"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_terminal_shows_the_facts_of_every_optimizer(
    name: str, shown_by: Callable[..., str]
) -> None:
    blocks = {block.split()[0]: block for block in shown_by("optimizers").strip().split("\n\n")}
    optimizer = OPTIMIZERS[name]
    rules = [f"default {rule.default} " for _, rule in ruled_fields(optimizer)]
    ranges = [str(rule) for _, rule in ruled_fields(optimizer)]
    for fact in [optimizer.label, optimizer.formula, optimizer.source, *rules, *ranges]:
        assert fact in blocks[name]


def test_a_terminal_shows_a_classification_as_a_bar_and_a_line() -> None:
    status, shown = on_terminal(*TINY)
    assert status == 0
    assert re.search(r"100%\|█+\| 4\.0/4 steps .*, loss \d\.\d+, test accuracy 0\.\d{3}\]", shown)
    last = shown.splitlines()[-1]
    assert re.fullmatch(
        r"test accuracy 0\.\d{3}, [\d.]+ s/epoch, on 2 replicas on the CPU .*", last
    )


def test_a_terminal_shows_why_a_classification_diverged(shown_by: Callable[..., str]) -> None:
    assert re.fullmatch(
        r"The loss grew to \S+ at step \d+, at learning rate 100\.\n", shown_by(*DIVERGING)
    )


@pytest.mark.parametrize(("runs", "fraction"), [(1, "0.2/1"), (2, "0.1/1")])
def test_the_bar_moves_within_a_step(
    runs: int, fraction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> Iterator[ClassificationEvent]:
        yield Started(1, 1, None, None)
        time.sleep(0.15)  # tqdm draws every 0.1 s
        yield ShardDone("forward", 0, 2)

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    report.show_classification(slow(), runs)
    assert f"{fraction} steps" in terminal.getvalue()


def test_the_bar_is_where_the_steps_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def thirds() -> Iterator[ClassificationEvent]:
        yield Started(2, 2, None, None)
        yield from [ShardDone("forward", 0, 3)] * 7
        yield StepTaken(1, 0.5)
        time.sleep(0.15)
        yield ShardDone("forward", 0, 1)

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    report.show_classification(thirds(), 1)
    assert "1.5/2 steps" in terminal.getvalue()


def test_a_slow_evaluation_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> Iterator[ClassificationEvent]:
        yield Started(1, 1, None, None)
        time.sleep(0.15)
        yield ImagesSeen(250, 1_000)

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    report.show_classification(slow(), 1)
    assert "testing 250/1,000" in terminal.getvalue()


# --- sweeps and fair races ------------------------------------------------------------------

FEW = ["--rates", "4", "--epochs", "1", "--batch-size", "50"]


def test_sweep_writes_the_config_every_cell_and_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(["sweep", *FEW, "--optimizers", "adam", "sgd"]) == 0
    config, *cells, first, second = lines(capsys.readouterr().out)
    assert (config["event"], config["rates"], config["epochs"]) == ("config", 4, 1)
    assert [cell["event"] for cell in cells] == ["cell_measured"] * 8
    for best, racer in ((first, "Adam"), (second, "SGD")):
        losses = [cell["outcome"]["loss"] for cell in cells if cell["racer"] == racer]
        assert best["cell"]["outcome"]["loss"] == min(losses)


def test_hyperparameters_follow_an_optimiser_after_commas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(["sweep", *FEW, "--optimizers", "momentum,momentum=0.5"]) == 0
    [config, *_] = lines(capsys.readouterr().out)
    assert config["racers"][0]["optimizer"]["momentum"] == 0.5


def test_grid_takes_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--against", "batch_size", "--values", "30", "300", "--optimizers", "sgd"]
    assert status_of(["sweep", *FEW, *arguments]) == 0
    cells = [line for line in lines(capsys.readouterr().out) if line["event"] == "cell_measured"]
    assert [cell["value"] for cell in cells] == [30] * 4 + [300] * 4


def test_sweep_in_which_all_diverged_has_its_status_and_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--lowest", "3", "--highest", "9", "--batch-size", "5", "--optimizers", "sgd"]
    assert status_of(["sweep", *arguments]) == 3
    *_, problem = lines(capsys.readouterr().out)
    assert problem["problem"].startswith("Every run diverged")


def test_fair_race_writes_budget_rates_and_bands(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["fair-race", *FEW, "--seeds", "2", "--optimizers", "sgd"]) == 0
    config, *events = lines(capsys.readouterr().out)
    assert "Each optimiser tries 4 learning rates" in config["budget"]
    kinds = [event["event"] for event in events]
    assert kinds[:9] == ["cell_measured"] * 8 + ["rate_chosen"]
    assert set(kinds[9:]) <= {"band_recorded", "note"}


@pytest.mark.parametrize("command", ["sweep", "fair-race"])
@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_chart_goes_to_a_file(command: str, ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"chart.{ending}"
    assert status_of([command, *FEW, "--optimizers", "sgd", "--chart", str(file)]) == 0
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("command", ["sweep", "fair-race"])
def test_own_csv_is_trained_on(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a;b\n" + "".join(f"{n},5;{n * n % 7}\n" for n in range(30)))
    assert status_of([command, *FEW, "--csv", str(file), "--optimizers", "sgd"]) == 0
    # The first column in place of the last: another problem, with another end.
    ends = [lines(capsys.readouterr().out)[-1]]
    assert status_of([command, *FEW, "--csv", str(file), "--label", "a"]) == 0
    ends.append(lines(capsys.readouterr().out)[-1])
    assert ends[0] != ends[1]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["sweep", "--chart", "chart.pdf"], 2, "chart must be"),
        (["sweep", "--optimizers", "foo"], 2, "one of sgd"),
        (["sweep", "--optimizers", "adam", "--against", "momentum"], 2, "received 'adam'"),
        (["sweep", "--against", "batch_size", "--chart", "c.svg"], 2, "grid of one optimiser"),
        (["sweep", "--label", "a"], 2, "left out without --csv"),
        (["sweep", "--racers", "a"], 2, "flag must be one of --engine"),
        (["fair-race", "--csv", "nowhere.csv"], 4, "cannot be read"),
        (["fair-race", "--lowest", "2", "--highest", "1"], 2, "fair race: highest must be"),
    ],
    ids=str,
)
def test_wrong_sweep_ends_with_one_sentence(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", *FEW, "--optimizers", "sgd"], ["best at lr", "4 runs, 0 of them diverged"]),
        (["fair-race", *FEW, "--seeds", "2"], ["Each optimiser tries 4", "median ½ MSE"]),
    ],
    ids=["sweep", "fair race"],
)
def test_sweeps_are_summed_up_for_people(arguments: list[str], words: list[str]) -> None:
    status, shown = on_terminal(*arguments)
    assert status == 0
    assert all(each in shown for each in words)


# Runs on processes; see also test_rank_process


RESUMED = [
    ProcessesAwaited(1, 2, 0.05),
    Started(10, 5, None, None),
    Resumed(3, 0.6, (), (), {}),
    Checkpointed(4, 0.8, "run.ckpt", "No space left on device"),
    ClassifierTrained(10, 2, 0.5, 1.0, "2 processes"),
]


def test_of_a_resumed_run_it_is_written_how_far_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report.write_events(RESUMED, steps=True)
    written = lines(capsys.readouterr().out)
    assert [each["event"] for each in written] == [
        "started", "resumed", "checkpointed", "classifier_trained",
    ]  # fmt: skip
    assert written[1] == {"event": "resumed", "step": 3, "epochs": 0.6}


def test_a_checkpoint_that_could_not_be_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    report.show_classification(RESUMED, 1)
    message = capsys.readouterr().err
    assert "Step 4 could not be kept in run.ckpt: No space left on device." in message


def test_the_run_of_another_rank_reports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.follow(RESUMED) == RESUMED[-1]
    assert capsys.readouterr().out == ""


def test_a_foreign_checkpoint_exits_with_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.ckpt"
    path.write_text("something else")
    assert cli.main([*TINY, "--engine", "processes", "--checkpoint", str(path)]) == 5
    assert "it is none, or damaged" in capsys.readouterr().err
