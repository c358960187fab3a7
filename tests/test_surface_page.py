"""The surface on the Optimizers page, without a browser."""

import json
import re

from labcore.datasets import airfoil
from labcore.surface import axis_names
from tests.test_pages import ended, press

QUICK = {
    "engine": ["from scratch"],
    "pace": ["max"],
    "epochs": ["1"],
    "racer": ["sgd", "adam"],
    "look": ["surface"],
}


def charts(app):
    return [json.loads(each.proto.spec) for each in app.get("vega_lite_chart")]


def described(app):
    """What the chart beside the curves says it is."""
    return charts(app)[1]["description"]


def select(app, label):
    return next(each for each in app.selectbox if each.label == label)


def test_curves_are_shown_without_the_surface(visit):
    assert len(charts(visit(**QUICK | {"look": ["curves"]}))) == 1


def test_surface_is_beside_the_curves_before_the_start(visit):
    assert described(visit(**QUICK)).startswith("The loss over λ = 2.098 (steepest) and λ = 0.1737")


def test_table_is_below_the_surface(visit):
    assert any("<table" in each.value for each in visit(**QUICK).html)


def test_axes_are_named_by_their_weights(visit):
    app = visit(**QUICK, axes=["weights"], across=["0"], up=["3"])
    assert described(app).startswith("The loss over frequency and velocity")
    assert select(app, "Across").value == 0


def test_all_racers_are_in_the_description(visit):
    assert described(ended(press(visit(**QUICK), "Start"))).endswith("SGD, Adam.")


def test_other_axes_keep_the_runs(visit):
    app = ended(press(visit(**QUICK), "Start"))
    job = app.session_state["job:race"]
    select(app, "Up").set_value(2).run()
    assert app.session_state["job:race"] is job
    assert app.query_params["up"] == "2"
    assert f"and {axis_names(airfoil.load(), 'eigenvectors')[2]} seen" in described(app)


def test_same_axis_twice_is_a_message_and_nothing_is_lost(visit):
    app = ended(press(visit(**QUICK), "Start"))
    job = app.session_state["job:race"]
    select(app, "Up").set_value(0).run()
    [message] = [each.value for each in app.info]
    assert "two different axes" in message
    assert not app.exception
    assert app.session_state["job:race"] is job
    select(app, "Up").set_value(1).run()
    assert not app.info
    assert len(charts(app)) == 2


def test_same_axis_twice_in_a_link_is_a_message(visit):
    app = visit(**QUICK, across=["3"], up=["3"])
    assert "two different axes; received 3 for both" in re.sub(r"\\(.)", r"\1", app.info[0].value)


def test_axis_that_the_data_do_not_have_becomes_the_last(visit):
    app = visit(**QUICK, up=["40"])
    assert app.query_params["up"] == "5"
    assert "(flattest)" in described(app)


def test_network_has_no_surface_and_says_so(visit):
    app = visit(**QUICK, model=["hidden"])
    assert "model must be linear" in app.info[0].value
    assert len(charts(app)) == 1


def test_other_weights_as_in_the_run_need_a_run(visit):
    app = visit(**QUICK, others=["current"])
    assert "needs a run" in app.info[0].value


def test_plane_follows_the_chosen_run(visit):
    app = ended(press(visit(**QUICK, others=["current"]), "Start"))
    assert len(charts(app)) == 2
    select(app, "Racer").set_value("Adam").run()
    assert select(app, "Racer").value == "Adam"
    assert not app.exception


def test_axes_survive_a_visit_elsewhere(visit):
    app = visit(**QUICK, axes=["weights"], across=["0"], up=["3"])
    select(app, "Up").set_value(4).run()
    app.switch_page("app.py").run()
    app.query_params = {}
    app.switch_page("pages/optimizers.py").run()
    assert described(app).startswith("The loss over frequency and displacement thickness")


def test_diverged_path_does_not_stop_the_page(visit):
    app = ended(press(visit(**QUICK | {"racer": ["sgd,lr=5", "adam"]}), "Start"))
    assert not app.exception
    assert len(charts(app)) == 2
