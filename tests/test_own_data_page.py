"""Own data on the Optimizers page: accepted, refused with a reason, and used everywhere."""

import re

import numpy as np
import pytest

from labcore.datasets.own import LARGEST_FILE
from tests.test_pages import ended, press

QUICK = {"engine": ["from scratch"], "pace": ["max"], "epochs": ["1"], "racer": ["sgd", "adam"]}
DRAWS = np.random.default_rng(0).normal(size=(60, 3)).round(3)
CELLS = np.column_stack([DRAWS, (DRAWS @ [1.0, 2.0, -1.0]).round(3)])


def csv(cells=CELLS, names="one,two,three,four", delimiter=",", comma=False):
    rows = [delimiter.join(map(str, row)) for row in cells.tolist()]
    text = "\n".join([names.replace(",", delimiter), *rows])
    return (text.replace(".", ",") if comma else text).encode()


def upload(app, content, name="mine.csv"):
    return app.file_uploader[0].upload(name, content, "text/csv").run()


def shown(app):
    return [re.sub(r"\\(.)", r"\1", each.value) for each in app.markdown]


def messages(app):
    return [re.sub(r"\\(.)", r"\1", each.value) for each in app.error]


def labels(app):
    return next(each for each in app.selectbox if each.label == "Label")


def facts(app):
    return next(text for text in shown(app) if "Exact minimum" in text)


def own_floor(label=3):
    scaled = (CELLS - CELLS.mean(axis=0)) / CELLS.std(axis=0)
    others = np.column_stack([np.delete(scaled, label, axis=1), np.ones(60)])
    solution = np.linalg.lstsq(others, scaled[:, label], rcond=None)[0]
    return np.mean((others @ solution - scaled[:, label]) ** 2) / 2


def test_title_names_the_data(visit):
    app = visit(**QUICK)
    assert "airfoil" in app.title[0].value
    assert "mine.csv" in re.sub(r"\\(.)", r"\1", upload(app, csv()).title[0].value)


def test_what_is_known_of_the_data_is_said(visit):
    text = facts(upload(visit(**QUICK), csv()))
    assert "60 rows, 3 features, to predict *four*" in text
    assert f"½ MSE {own_floor():.6f}" in text
    scaled = (CELLS - CELLS.mean(axis=0)) / CELLS.std(axis=0)
    inputs = np.column_stack([scaled[:, :3], np.ones(60)])
    values = np.linalg.eigvalsh(inputs.T @ inputs / 60)
    assert f"condition number {values[-1] / values[0]:.4g}" in text
    assert f"SGD {1 / values[-1]:.4g}" in text  # MSE: 2 / (2 λ)


def test_race_runs_on_the_data(visit):
    app = ended(press(upload(visit(**QUICK), csv()), "Start"))
    with app.session_state["job:race"].reading() as history:
        assert (history.rows, history.steps) == (60, 6)
        assert history.floor == pytest.approx(own_floor(), abs=1e-12)
    table = next(each.value for each in app.html if "standings" in each.value)
    assert "all 60 rows" in table
    assert "1,500" not in table


def test_label_can_be_chosen(visit):
    app = upload(visit(**QUICK), csv())
    assert labels(app).value == "four"
    labels(app).set_value("one").run()
    assert f"½ MSE {own_floor(0):.6f}" in facts(app)


def test_another_label_drops_the_race_on_the_old_one(visit):
    app = ended(press(upload(visit(**QUICK), csv()), "Start"))
    labels(app).set_value("one").run()
    assert app.get("progress")[0].proto.text == "Ready"


def test_surface_has_the_columns_as_axes(visit):
    app = visit(**QUICK, look=["surface"], axes=["weights"], across=["0"], up=["1"])
    upload(app, csv())
    spec = app.get("vega_lite_chart")[1].proto.spec
    assert "The loss over one and two" in spec
    across = next(each for each in app.selectbox if each.label == "Across")
    assert across.options == ["one", "two", "three", "bias"]


def test_hood_has_the_columns_as_weights(visit):
    app = upload(visit(**QUICK, look=["hood"]), csv(names="<b>one</b>,two,three,four"))
    text = next(each.value for each in app.html if "class='hood'" in each.value)
    assert "&lt;b&gt;one&lt;/b&gt;" in text
    assert "<b>one" not in text
    assert not press(app, "Step").exception


def test_back_to_the_airfoil_data(visit):
    app = ended(press(upload(visit(**QUICK), csv()), "Start"))
    press(app, "Back to the airfoil data")
    assert "airfoil" in app.title[0].value
    assert app.get("progress")[0].proto.text == "Ready"
    assert not any("Exact minimum" in text for text in shown(app))


def test_data_stay_over_a_visit_elsewhere(visit):
    app = upload(visit(**QUICK), csv())
    labels(app).set_value("two").run()
    app.switch_page("app.py").run()
    app.query_params = {}
    app.switch_page("pages/optimizers.py").run()
    assert labels(app).value == "two"
    assert "to predict *two*" in facts(app)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_are_read(visit, delimiter):
    app = upload(visit(**QUICK), csv(delimiter=delimiter, comma=True))
    assert messages(app) == []
    assert f"½ MSE {own_floor():.6f}" in facts(app)


def test_formula_like_header_is_shown_as_it_is(visit):
    app = upload(visit(**QUICK), csv(names="=1+1,two,three,=SUM(A1:A9)"))
    assert labels(app).options == ["=1+1", "two", "three", "=SUM(A1:A9)"]
    assert "=SUM(A1:A9)" in facts(app)


def test_name_of_a_file_is_no_markdown(visit):
    app = upload(visit(**QUICK), csv(), "*![x](https://example.org/y.png)*.csv")
    assert "](" not in app.title[0].value


TEXT = CELLS.astype(object).copy()
TEXT[4, 1] = "red"
MISSING = CELLS.astype(object).copy()
MISSING[4, 1] = ""
CONSTANT = CELLS.copy()
CONSTANT[:, 1] = 3.0
WIDE = np.random.default_rng(1).normal(size=(60, 52)).round(3)
REFUSED = {
    "text column": (csv(TEXT), "has 'red', which is no number"),
    "missing value": (csv(MISSING), "has a missing value"),
    "constant column": (csv(CONSTANT), "is constant"),
    "nine rows": (csv(CELLS[:9]), "has 9 rows of values; at least 10"),
    "51 features": (csv(WIDE, names=",".join(f"c{i}" for i in range(52))), "has 52 columns"),
    "empty file": (b"", "is empty"),
    "6 MB": (b"a,b\n" + b"1,2\n" * (6 * 2**20 // 4), "at most 5,242,880 (5 MB)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_file_is_refused_with_a_reason_and_nothing_is_lost(visit, case):
    content, reason = REFUSED[case]
    assert (len(content) > LARGEST_FILE) == (case == "6 MB")
    app = ended(press(upload(visit(**QUICK), csv()), "Start"))
    job, before = app.session_state["job:race"], facts(app)
    upload(app, content, "bad.csv")
    [message] = messages(app)
    assert reason in message
    assert message.count("bad.csv") == 1
    assert not app.exception
    assert app.session_state["job:race"] is job
    assert facts(app) == before


def test_refusal_goes_away_with_a_good_file(visit):
    app = upload(visit(**QUICK), b"", "bad.csv")
    assert messages(app) != []
    upload(app, csv())
    assert messages(app) == []
