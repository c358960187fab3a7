"""Runs on processes on the Fashion-MNIST page: start, wait, stop, fail, resume; none is left."""

import gc
import os
import signal
import time
from contextlib import ExitStack
from functools import partial

import pytest
import torch

from labcore.config import format_fields
from labcore.datasets.fashion_mnist import EMBEDDED
from labcore.events import ProcessesAwaited
from labcore.jobs import Job
from labcore.places import MOST_PROCESSES, PLACES
from labcore.replicas import PHASES
from labui import classification_form
from labui.classification_view import _start_up
from labui.process_run import Folder
from tests.test_fashion_page import (
    CONFIG,
    LONG,
    PAGE,
    SETTINGS,
    Speed,
    captions,
    choice,
    choose,
    finished,
    go_to,
    history_of,
    job,
    opened,
    replicas_table,
    words,
)
from tests.test_launch import needs_proc, ranks
from tests.test_pages import (
    button,
    enabled,
    errors,
    has_moved,
    press,
    progress,
    state,
    step,
)

ON_TWO = SETTINGS | {"engine": "processes"}
LONG_ON_TWO = LONG | {"engine": "processes", "images": "100", "batch_size": "10"}
GO_ON = "Go on with the run that has ended"
pytestmark = needs_proc


@pytest.fixture(autouse=True, scope="module")
def same_everywhere():
    """The same images on every machine, no GPU, and no trial of the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_DATA_DIR", str(EMBEDDED))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        patch.setattr(classification_form, "calibrate", lambda model, cores: Speed(0.5, 0.0))
        yield


@pytest.fixture
def visit(visit):
    """Opens this page."""
    return partial(visit, PAGE)


@pytest.fixture(autouse=True)
def none_left():
    """After each test every process is gone, and every place free."""
    yield
    assert (ranks(), PLACES.taken) == ({}, 0)


def rerun_until(app, wanted):
    """Rerun until the page is as wanted: processes that load torch need the cores meanwhile."""
    until = time.monotonic() + 60
    while not wanted(app):
        assert time.monotonic() < until, f"The page stayed at {progress(app)!r}."
        time.sleep(0.3)
        app.run()
    return app


def offered(app):
    return GO_ON in [each.label for each in app.button]


def at_rest(app):
    assert job(app).wait(20)
    return app.run()


# --- a whole run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended():
    """A finished run, only to be looked at."""
    return finished(opened(**ON_TWO))


def test_the_run_is_that_of_logical_replicas(ended):
    app = finished(opened(**SETTINGS))
    logical, own = (list(history_of(each).minibatches) for each in (app, ended))
    assert [each.loss for each in own] == pytest.approx([each.loss for each in logical], abs=1e-4)


def test_replicas_have_the_times_of_their_processes(ended):
    table, latest = replicas_table(ended), history_of(ended).latest
    for phase in PHASES:
        times = [1000 * each[phase] for each in latest.rank_phases]
        assert [float(each) for each in table[f"{phase}, ms"]] == pytest.approx(times, abs=0.1)


def test_the_summary_says_on_what_it_ran(ended):
    assert any("on 2 processes on the CPU" in each for each in captions(ended))


def test_the_page_says_where_the_run_is_kept(ended):
    assert any("Step 20 is kept in" in each.replace("\\", "") for each in captions(ended))


def test_a_finished_run_is_not_offered_again(ended):
    assert not offered(ended)


def test_the_time_of_processes_is_not_that_of_logical_replicas(visit):
    said = words(visit(**ON_TWO, detail="time"))
    assert "Processes run side by side" in said
    assert "Logical replicas share this CPU" not in said


def test_the_estimate_is_said_to_be_that_of_logical_replicas(visit):
    assert any("if logical replicas run them" in each for each in captions(visit(**ON_TWO)))


# --- start-up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (None, (0.0, "")),
        (ProcessesAwaited(2, 4, 3.2), (0.5, "starting 4 processes: 2 of 4 ready, 3 s")),
        (ProcessesAwaited(0, 1, 0.4), (0.0, "starting 1 process: 0 of 1 ready, 0 s")),
        (ProcessesAwaited(0, 4, 0.0, 3), (0.0, "waiting for 3 processes of other runs to end")),
        (ProcessesAwaited(0, 4, 0.0, 1), (0.0, "waiting for 1 process of other runs to end")),
    ],
    ids=str,
)
def test_start_up_in_words(event, shown):
    assert _start_up(event) == shown


def test_start_up_is_shown_and_can_be_stopped(visit):
    app = press(visit(**LONG_ON_TWO), "Start")
    rerun_until(app, lambda app: "starting 2 processes" in progress(app))
    press(app, "Stop")
    at_rest(app)
    assert (state(app), ranks(), offered(app)) == ("Stopped", {}, False)


# --- the line -------------------------------------------------------------------------------------


@pytest.fixture
def full():
    """Other runs have all places, until the stack is closed."""
    with ExitStack() as stack:
        assert stack.enter_context(PLACES.request(MOST_PROCESSES)).missing() == 0
        yield stack


def test_a_run_waits_for_others_and_then_starts_by_itself(visit, full):
    app = press(visit(**LONG_ON_TWO), "Start")
    rerun_until(app, lambda app: "waiting for 2 processes of other runs to end" in progress(app))
    assert ranks() == {}
    full.close()
    assert step(rerun_until(app, has_moved)) > 0


def test_a_run_that_waits_can_be_stopped(visit, full):
    app = press(visit(**LONG_ON_TWO), "Start")
    rerun_until(app, lambda app: "waiting for 2 processes" in progress(app))
    press(app, "Stop")
    full.close()
    assert (state(at_rest(app)), PLACES.taken) == ("Stopped", 0)


def test_the_allreduce_page_waits_for_the_sessions_run(visit, full):
    app = press(visit(**LONG_ON_TWO), "Start")
    go_to(app, "pages/allreduce.py")
    assert not enabled(app, "Run")
    assert any("One run on processes at a time" in each for each in captions(app))


# --- stopped, failed, resumed ---------------------------------------------------------------------


def test_a_stopped_run_goes_on_where_it_was_stopped(visit):
    app = press(rerun_until(press(visit(**LONG_ON_TWO), "Start"), has_moved), "Stop")
    at = step(app)
    at_rest(app)
    assert any("It is kept as it was written down last" in each for each in captions(app))
    assert "device" not in progress(app)
    press(app, GO_ON)
    rerun_until(app, has_moved)
    history = history_of(app)
    assert history.resumed >= at
    assert next(iter(history.minibatches)).step == 1
    assert any("Resumed after step" in each for each in captions(app))


def test_a_new_start_is_no_resumption(visit):
    app = press(rerun_until(press(visit(**LONG_ON_TWO), "Start"), has_moved), "Stop")
    press(at_rest(app), "Start")
    assert history_of(rerun_until(app, has_moved)).resumed is None


def test_a_run_that_was_reset_is_not_offered(visit):
    app = press(rerun_until(press(visit(**LONG_ON_TWO), "Start"), has_moved), "Stop")
    assert offered(at_rest(app))
    assert not offered(press(app, "Reset"))


def test_a_killed_process_is_named_and_its_run_can_go_on(visit):
    app = press(visit(**LONG_ON_TWO), "Start")
    rerun_until(app, lambda app: has_moved(app) and history_of(app).checkpoint)
    os.kill(ranks()[1], signal.SIGKILL)
    rerun_until(app, lambda app: state(app) == "Failed")
    assert any("rank 1 of 2 was ended by SIGKILL" in each.replace("\\", "") for each in errors(app))
    assert offered(at_rest(app))


def test_a_stopped_run_of_logical_replicas_is_not_offered(visit):
    app = press(rerun_until(press(visit(**LONG), "Start"), has_moved), "Stop")
    assert not offered(at_rest(app))


def test_the_folder_of_a_session_ends_with_it():
    folder = Folder()
    path = folder.path
    (path / "run-1.checkpoint").write_bytes(b"some")
    del folder
    gc.collect()
    assert not path.exists()


# --- what this machine cannot do ------------------------------------------------------------------


def test_data_parallel_without_a_gpu_is_a_sentence_with_a_way_out(visit):
    app = choose(visit(**SETTINGS), "Engine", "dataparallel")
    (message,) = errors(app)
    assert "a single copy and does not say so" in message.replace("\\", "")
    assert "Try processes" in message
    assert (enabled(app, "Start"), enabled(app, "Step")) == (False, False)
    assert not any("logical" in each for each in captions(app) if "Images" in each)


@pytest.mark.parametrize("engine", ["logical", "processes"])
def test_synchronised_batch_norm_in_a_link_can_be_taken_back(visit, engine):
    app = visit(**SETTINGS, engine=engine, batch_norm="synchronised")
    assert (len(errors(app)), enabled(app, "Start")) == (1, False)
    choose(app, "Batch norm", "local")
    assert (errors(app), enabled(app, "Start")) == ([], True)


@pytest.mark.parametrize(
    ("model", "engine", "gpus", "why"),
    [
        ("lenet", "processes", 2, "LeNet has no batch norm"),
        ("resnet18", "processes", 0, "needs a GPU"),
        ("resnet18", "logical", 2, "needs a process per device"),
        ("resnet18", "processes", 2, None),
    ],
)
def test_batch_norm_has_a_choice_only_where_it_matters(
    visit, monkeypatch, model, engine, gpus, why
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    app = visit(**SETTINGS, model=model, engine=engine)
    assert choice(app, "Batch norm").proto.disabled == (why is not None)
    assert any((why or "Each device is a process") in each for each in captions(app))


def test_the_config_of_the_page_is_that_of_the_link(visit):
    app = press(visit(**ON_TWO), "Start")
    assert isinstance(job(app), Job)
    assert format_fields(history_of(app).config) == format_fields(CONFIG) | {"engine": "processes"}
    press(app, "Stop")
    at_rest(app)
    assert button(app, "Start")
