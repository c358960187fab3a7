"""What every page begins with: its title and the sidebar, the lab's table of contents."""

import gc
import re
from dataclasses import dataclass

import pandas  # type: ignore[import-untyped]  # noqa: F401
import streamlit as st

from labcore.jobs import pool

# Everything heavy is imported by now; pandas, too, which Streamlit would import only when it draws,
# in several sessions at once, one of which would find it half imported. Frozen, all this is no
# longer searched by each garbage collection, for which a whole class would pay again and again.
gc.freeze()


@dataclass(frozen=True)
class Page:
    """An entry of the table of contents; `file` is relative to the project's top."""

    file: str
    title: str
    icon: str
    summary: str


HOME = Page("app.py", "Home", ":material/home:", "What the lab is, and this machine.")
LABS = (
    Page(
        "pages/optimizers.py",
        "Optimizers",
        ":material/trending_down:",
        "Race up to eight optimisers on wind-tunnel data, from the same start on the same "
        "minibatches, against the exact minimum.",
    ),
    Page(
        "pages/fashion_mnist.py",
        "Fashion-MNIST",
        ":material/hub:",
        "Train LeNet or a residual network on 1 to 16 devices, and see what every replica does, "
        "where the time goes, and that k devices take the step that one would.",
    ),
    Page(
        "pages/training_step.py",
        "Training step",
        ":material/footprint:",
        "Take one step of LeNet on 1 to 16 replicas, move by move, with its numbers and its code, "
        "and find out which of six classic mistakes is being made.",
    ),
    Page(
        "pages/split_a_batch.py",
        "Split a batch",
        ":material/call_split:",
        "Watch the rows of a minibatch move to up to 16 devices, and what the ways of adding up "
        "their gradients make of them, the right one and the usual wrong ones.",
    ),
    Page(
        "pages/allreduce.py",
        "Allreduce",
        ":material/sync_alt:",
        "Step through seven ways to sum vectors over up to 64 ranks, message by message, compare "
        "what they cost, and run one on real processes.",
    ),
    Page(
        "pages/scaling.py",
        "Scaling",
        ":material/bar_chart:",
        "Ask what up to 1,024 devices would do, or devices of unequal speed, find what is odd in "
        "the notes' table, and predict before you look.",
    ),
)

SIDEBAR_WIDTH = 220

# The picture comes first: less empty space around it than Streamlit leaves.
_STYLE = """
<style>
[data-testid="stMainBlockContainer"] { padding: 3.25rem 2rem 4rem; }
[data-testid="stMainBlockContainer"] h1 { font-size: 1.35rem; padding: 0 0 0.5rem; }
[data-testid="stMainBlockContainer"] h3 { font-size: 1.15rem; padding: 0.5rem 0 0; }
@media (max-width: 640px) {
  [data-testid="stMainBlockContainer"] { padding: 4.25rem 1rem 4rem; }
  [data-testid="stMainBlockContainer"] h1 { font-size: 1.15rem; }
}
</style>
"""


def page(title: str) -> None:
    """Begin a page: browser title, layout and sidebar.

    Args:
        title: the title of `HOME` or of one of `LABS`.
    """
    st.set_page_config(
        f"{title} · Optimiser lab", "📉", layout="wide", initial_sidebar_state=SIDEBAR_WIDTH
    )
    st.html(_STYLE)
    try:
        pool()
    except ValueError as error:
        st.error(plain(str(error)))
        st.stop()
    with st.sidebar:
        st.markdown("**Optimiser lab**")
        for each in (HOME, *LABS):
            st.page_link(each.file, label=each.title, icon=each.icon)


def plain(text: str) -> str:
    """Text that may come from a link or a form, for where Streamlit reads Markdown."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def chart_colors() -> list[str]:
    """The category palette of the theme that the browser shows, as its charts use it."""
    theme = st.context.theme.type or "light"
    colors: list[str] = st.get_option(f"theme.{theme}.chartCategoricalColors")
    return colors


def ground() -> str:
    """The colour nearest to the ground that the browser shows, for what shall stand out from it."""
    return "black" if st.context.theme.type == "dark" else "white"


def ink() -> str:
    """The colour of text on the ground that the browser shows, for words in charts."""
    return "white" if st.context.theme.type == "dark" else "black"
