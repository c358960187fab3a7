"""Shows a sequence of frames that a student steps through, in the browser, without the server.

One Streamlit component: its script is `player.js` and a file per kind of figure. All frames are
sent once; where the student has come to rest is reported back, so that the URL follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2.types import ComponentRenderer

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Film:
    """What the player shows.

    Attributes:
        figure: the name of its script in this folder.
        description: what the picture is, for those who do not see it; a frame's sentence follows.
        unit: what one frame after the first is: "Round", "Move".
        file: how a saved picture is called.
        totals: names of the figures below the picture.
        scene: what does not change; see the figure's script.
        frames: each with "phase", "sentence", "code", "totals" and what the figure's script needs;
            the first is the state before anything has happened. With a "question", a frame can be
            predicted.
    """

    figure: str
    description: str
    unit: str
    file: str
    totals: Sequence[str]
    scene: Mapping[str, Any]
    frames: Sequence[Mapping[str, Any]]
    id: str = field(init=False)

    def __post_init__(self) -> None:
        content = dumps([self.figure, self.description, self.scene, self.frames])
        object.__setattr__(self, "id", sha256(content.encode()).hexdigest()[:16])


@cache
def _component() -> ComponentRenderer:
    figures = [file for file in sorted(FOLDER.glob("*.js")) if file.name != "player.js"]
    scripts = [file.read_text() for file in (FOLDER / "player.js", *figures)]
    return st.components.v2.component(
        "optimizer_lab_player",
        html=(FOLDER / "player.html").read_text(),
        css=(FOLDER / "player.css").read_text(),
        js="\n".join(scripts),
    )


def player(key: str, film: Film, at: int) -> int:
    """Show a film; returns the frame at which the student rests.

    Args:
        key: of the component.
        film: what to show.
        at: the frame to begin with. A film that the player shows already stays where it is; one
            that takes another's place begins at its start.
    """
    before = st.session_state.get(f"film:{key}", film.id)
    st.session_state[f"film:{key}"] = film.id
    at = at if before == film.id else 0
    data = {
        "id": film.id,
        "figure": film.figure,
        "description": film.description,
        "unit": film.unit,
        "file": film.file,
        "totals": list(film.totals),
        "scene": dict(film.scene),
        "frames": list(film.frames),
        "start": at,
    }
    result = _component()(key=key, data=data, default={"at": None}, on_at_change=lambda: None)
    match result.at:
        case {"id": film.id, "at": int(rested)} if 0 <= rested < len(film.frames):
            return rested
    return min(at, len(film.frames) - 1)
