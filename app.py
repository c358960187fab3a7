"""The home page: what the lab is, what this machine has, and where to start."""

import os
import platform

import streamlit as st

from labcore.datasets import airfoil
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import place_to_use, places
from labui.page import LABS, page


def machine() -> dict[str, str]:
    """What this machine offers to a run, in words."""
    import torch  # after the lab, which sets how its threads wait

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "GPUs": ", ".join(cuda) or "none: everything runs on the CPU",
        "CPU cores": str(os.cpu_count()),
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "Airfoil self-noise": airfoil_state(),
        "Fashion-MNIST": f"found in {place_to_use(places()).origin}",
    }


def airfoil_state() -> str:
    """Whether the embedded data are there and whole."""
    try:
        data = airfoil.load()
    except DataError as error:
        return str(error)
    rows, features = data.features.shape
    return f"embedded and verified: {rows:,} rows, {features} features"


page("Home")
st.title("Optimiser lab")
st.markdown(
    "Watch optimisers learn, live, on real data. Every curve is trained here while you look, and "
    "what can be known in closed form, such as the smallest possible loss, is drawn beside what "
    "the optimisers reach."
)
for lab in LABS:
    with st.container(border=True):
        st.page_link(lab.file, label=f"**{lab.title}**", icon=lab.icon)
        st.markdown(lab.summary)
st.subheader("This machine")
st.table(machine(), border="horizontal")
