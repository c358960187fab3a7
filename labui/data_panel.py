"""Which images this machine has, and a button that gets all of them."""

import streamlit as st

from labcore.datasets import fashion_mnist
from labcore.datasets.download import download
from labcore.datasets.errors import DataError
from labcore.datasets.fashion_mnist import FashionMNIST


def data_panel(data: FashionMNIST) -> None:
    """Say where the images come from; offer the download where only the sample is here."""
    st.caption(f"Images: {data.source}.")
    if fashion_mnist.FULL in data.source:
        return
    pressed = st.button(
        "Download all 70,000 images",
        icon=":material/download:",
        help="About 31 MB, once, into this machine's cache folder; checked before it is used.",
    )
    if not pressed:
        return
    bar = st.progress(0.0, text="Downloading")

    def show(done: int, total: int) -> None:
        bar.progress(min(1.0, done / total), text="Downloading")

    try:
        download(show)
    except DataError as error:
        bar.empty()
        st.error(str(error))
        return
    st.rerun()
