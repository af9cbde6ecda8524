"""The moving pictures of lesson 0: one scene at a time, about the scenario's own model; the arrow keys walk."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Final

import streamlit as st

from kvcore.base.words import Words
from kvcore.charts.drawings import Picture, layers_picture, reuse_picture, sharing_picture
from kvcore.course import StepName
from kvcore.planning import Plan
from pages.ui.learn import look
from pages.ui.shared import state

STYLE: Final = Path(__file__).with_name("pictures.css")
OF_PLAN: Final[dict[StepName, Callable[[Plan, Words], Picture]]] = {
    StepName.LAYERS: layers_picture,
    StepName.REUSE: reuse_picture,
    StepName.SHARING: sharing_picture,
}
SCENE = "frame"


def picture(plan: Plan, name: StepName, t: Words) -> Picture:
    """The picture of a step of lesson 0 about `plan`."""
    return OF_PLAN[name](plan, t)


def scene_number(of: Picture) -> int:
    """The scene that the link names, from 0 on; a number beyond the last is the last."""
    return min(int(state.page_parameter(SCENE)), len(of.scenes) - 1)


def show(of: Picture, t: Words) -> None:
    """The scene with its sentence, and with the last one the sentence that stays."""
    number = scene_number(of)
    scene = of.scenes[number]
    st.html(look.STYLE)
    st.html(STYLE)
    at = t("{number} of {count}", number=str(number + 1), count=str(len(of.scenes)))
    place = "" if look.is_presented() else f'<div class="kv-soft">{escape(at)}</div>'
    said = f'<p class="kv-said" role="status">{escape(scene.caption)}</p>'
    kept = f'<p class="kv-remember">{escape(of.remember)}</p>' if number == len(of.scenes) - 1 else ""
    figure = scene.drawing.figure if scene.drawing.html else ""
    # Each scene has a class of its own: it comes as a new drawing, so that what is new in it moves.
    st.html(f'<div class="kv-lesson kv-scene kv-scene-{number}">{place}{said}{figure}{kept}</div>')
