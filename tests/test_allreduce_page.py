"""The Allreduce page as a script, without a browser: what it shows, and what it survives."""

import json

import pytest
import torch

from labcore.collectives import ALLREDUCE, ring
from labcore.costs import LINKS, running_costs
from labcore.datasets import fashion_mnist
from labcore.exports import schedule_csv, schedule_json
from labcore.models import gradient_bytes
from labcore.schedules import allreduce
from labcore.trace import trace
from labcore.vectors import lenet_gradient, rank_plus_one
from labui.player.allreduce import allreduce_film
from tests.test_pages import button, elements, errors, notices, press

PAGE = "pages/allreduce.py"


def film(app):
    """What the page has sent to the player."""
    [mounted] = app.get("bidi_component")
    return json.loads(mounted.proto.json)


def last_state(sent):
    """(rank, chunk) → count and values at the end, as the browser puts the frames together."""
    cells = [*sent["scene"]["start"], *(c for frame in sent["frames"] for c in frame["cells"])]
    return {(rank, chunk): (count, values) for rank, chunk, count, _, values in cells}


@pytest.mark.parametrize("algorithm", ALLREDUCE)
def test_every_algorithm_ends_with_the_sum_everywhere(visit, algorithm):
    app = visit(PAGE, algorithm=algorithm, ranks="3", length="3")
    assert not errors(app)
    sent = film(app)
    assert len(sent["frames"]) == len(ALLREDUCE[algorithm](3).rounds) + 1
    for count, values in last_state(sent).values():
        assert count == 3
        assert set(values) <= {6.0}


def test_the_notes_example_is_one_click_away(visit):
    app = press(visit(PAGE), "The notes' example: [[1, 1]] and [[2, 2]]")
    assert last_state(film(app)) == {(0, 0): (2, [3.0, 3.0]), (1, 0): (2, [3.0, 3.0])}


def test_the_gradient_on_the_page_is_the_layers(visit):
    app = visit(PAGE, values="gradient", tensor="b4", ranks="2", algorithm="central")
    vectors = lenet_gradient(2, "b4", 0, fashion_mnist.load())
    start = [values for *_, values in film(app)["scene"]["start"]]
    assert start == vectors[:, :8].tolist()


def test_typed_numbers_come_from_the_link(visit):
    app = visit(PAGE, values="typed", ranks="2", length="2", rows=["1 2,5", "3 4"])
    assert not errors(app)
    assert last_state(film(app))[0, 1] == (2, [6.5])


def test_one_rank_has_nothing_to_send(visit):
    app = visit(PAGE, ranks="1")
    assert not errors(app)
    [only] = film(app)["frames"]
    assert "nothing needs to be sent" in only["sentence"]


def test_the_url_says_everything(visit):
    app = visit(PAGE, algorithm="tree", ranks="7", length="5", size="lenet", link="own", at="3")
    assert film(app)["start"] == 3
    query = {name: app.query_params[name] for name in ("algorithm", "ranks", "size", "link", "at")}
    assert [str(value) for value in query.values()] == ["tree", "7", "lenet", "own", "3"]


def test_another_algorithm_begins_at_its_start(visit):
    app = visit(PAGE, algorithm="tree", ranks="7", at="3")
    app.button_group[0].set_value("ring").run()
    assert film(app)["start"] == 0


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"ranks": "0"}, "ranks must be a whole number from 1 to 64; received '0'"),
        ({"ranks": "65"}, "ranks must be a whole number from 1 to 64; received '65'"),
        ({"length": "10000000"}, "length must be a whole number from 0 to 4096"),
        ({"length": "-1"}, "length must be a whole number from 0 to 4096"),
        ({"alpha": "nan"}, "alpha must be a number from 0 to"),
        ({"algorithm": "star"}, "algorithm must be one of central, tree, ring"),
    ],
)
def test_a_link_with_a_bad_setting_says_so_and_shows_the_default(visit, query, message):
    app = visit(PAGE, **query)
    assert any(message in notice for notice in notices(app))
    assert len(film(app)["frames"]) == 7


@pytest.mark.parametrize("text", ["one", "nan", "inf"])
def test_text_in_the_table_is_refused_with_its_place(visit, text):
    app = visit(PAGE, values="typed", ranks="2", length="2", rows=["1 2", f"3 {text}"])
    [message] = errors(app)
    assert f"rank 1, element 1 must be a finite number; received '{text}'" in message


def test_what_was_shown_stays_when_a_setting_is_refused(visit):
    app = visit(PAGE, ranks="3")
    shown = film(app)
    app.number_input[0].set_value(65).run()
    assert any("received '65'" in message for message in errors(app))
    assert film(app)["frames"] == shown["frames"]


def test_64_ranks_fit_into_two_megabytes(visit):
    for algorithm in ALLREDUCE:
        app = visit(PAGE, algorithm=algorithm, ranks="64", length="64")
        [mounted] = app.get("bidi_component")
        assert len(mounted.proto.json) < 2_000_000


def test_every_widget_explains_itself(visit):
    app = visit(PAGE, values="typed", link="own")
    widgets = elements(app, "id", "help")
    assert len(widgets) > 12
    assert [each.label for each in widgets if not each.help] == []


def test_totals_are_the_costs_of_the_schedule():
    schedule, size = ring(16), gradient_bytes("resnet18")
    link = LINKS["pcie3"]
    costs = running_costs(schedule, size, link.alpha, link.beta)
    shown = allreduce_film("ring", trace(schedule, rank_plus_one(16, 16)), costs, size)
    assert shown.frames[-1]["totals"] == ["256 of 256", "16", "83.8 MB", "1.34 GB", "5.49 ms"]


def test_a_question_is_answered_by_the_state_that_follows():
    schedule = ring(5)
    costs = running_costs(schedule, 20, 1e-6, 1e-9)
    shown = allreduce_film("ring", trace(schedule, rank_plus_one(5, 5)), costs, 20)
    for frame in shown.frames[1:]:
        _, dst, chunks, *_ = frame["messages"][0]
        [count] = [c for rank, chunk, c, *_ in frame["cells"] if (rank, chunk) == (dst, chunks[0])]
        assert frame["question"]["answer"] == count


def test_a_schedule_taken_home_can_be_played():
    kept = json.loads(schedule_json(ALLREDUCE["halving_doubling"](6)))
    buffers = list(rank_plus_one(6, 12))
    cells = [list(buffer.tensor_split(kept["chunks"])) for buffer in buffers]
    for phase in kept["phases"]:
        for sends in phase["rounds"]:
            carried = [cells[s["src"]][s["chunk"]].clone() for s in sends]
            for send, chunk in zip(sends, carried, strict=True):
                own = cells[send["dst"]][send["chunk"]]
                own.copy_(chunk) if send["op"] == "copy" else own.add_(chunk)
    assert torch.equal(torch.stack(buffers), torch.full((6, 12), 21.0))


def test_the_csv_has_a_row_per_send():
    schedule = ring(3)
    header, first, *others = schedule_csv(schedule).splitlines()
    assert header == "round,phase,src,dst,chunk,op"
    assert first == "1,reduce-scatter,0,1,2,reduce"
    assert len(others) + 1 == sum(map(len, schedule.rounds))


def test_run_for_real_gives_what_the_picture_shows(visit):
    app = visit(PAGE, ranks="2", length="3", values="random")
    button(app, "Run").click().run(timeout=60)
    assert not errors(app)
    values = {each.label: each.value for each in app.metric}
    assert float(values["largest difference to the picture"]) < 1e-6
    assert "GB/s" in values["bus bandwidth"] or "B/s" in values["bus bandwidth"]


def test_nine_ranks_are_too_many_for_real_processes(visit):
    app = visit(PAGE, ranks="9")
    assert button(app, "Run").disabled


def test_playing_in_place_and_the_page_agree():
    vectors = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    buffers = list(vectors.clone())
    allreduce(ring(4), buffers)
    assert torch.equal(trace(ring(4), vectors).final, torch.stack(buffers))
