"""The drawings of a step: the plan's heads, cards, pages and lengths; the pool and the steps of a small load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import streamlit as st

from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.charts import drawings
from kvcore.charts.drawings import Drawing
from kvcore.course import Step, StepName
from kvcore.course.classroom import CHUNKS, Classroom, classroom
from kvcore.course.request_steps import EXAMPLE_TOKENS
from kvcore.planning import Plan
from pages.ui.shared import state

STYLE: Final = Path(__file__).with_name("drawings.css")
PRESENTER: Final = Path(__file__).with_name("present.css")
OF_PLAN: Final[dict[StepName, Callable[[Plan, Words], Drawing | None]]] = {
    StepName.TOKEN: drawings.heads_drawing,
    StepName.POOL: drawings.pages_drawing,
    StepName.BLOCKS: lambda _, t: drawings.last_block_drawing(EXAMPLE_TOKENS, t),
    StepName.REQUESTS: drawings.lengths_drawing,
    StepName.CARDS: drawings.cards_drawing,
    StepName.QUALITY: drawings.quality_drawing,
}
OF_LOAD: Final = (StepName.BLOCKS, StepName.BATCHING)
WITHOUT_BAR: Final = (
    StepName.CARDS, StepName.LOG, StepName.CACHE_BITS, StepName.QUALITY, StepName.DRAFT, StepName.GAIN, StepName.TIER,
    StepName.ENGINES,
)  # fmt: skip
FRAME, CHUNK, PRESENT = "frame", "chunk", "present"


def present() -> None:
    """Shows the lesson alone, for a projector, where the link asks for it."""
    if is_presented():
        st.html(PRESENTER)


def is_presented() -> bool:
    """Whether the lesson is shown alone."""
    return bool(state.page_parameter(PRESENT))


def switch(key: str, t: Words) -> None:
    """Switches the lesson alone on and off. A button and not a toggle: a focused field keeps the arrow keys."""
    is_on = is_presented()
    st.button(
        t("End presentation") if is_on else t("Present"),
        key=f"{key}.end" if is_on else key,
        icon=":material/close_fullscreen:" if is_on else ":material/present_to_all:",
        type="tertiary",
        help=t("The lesson alone, for a projector"),
        on_click=state.set_page_parameter,
        args=(PRESENT, not is_on),
    )


def drawn(step: Step, t: Words) -> Drawing | None:
    """The drawing of a step, where it has one and the plan has the data."""
    draw = OF_PLAN.get(step.name)
    return draw(step.plan, t) if draw is not None else None


def drawing(step: Step, t: Words) -> None:
    """Shows the drawing of a step, where it has one."""
    st.html(STYLE)
    found = drawn(step, t)
    if found is not None:
        st.html(found.figure)


def load(step: Step, t: Words) -> None:
    """A small load under the engine's own rules, step by step; it does not give the answer away."""
    st.html(STYLE)
    room = classroom(step.plan.resolved.version, chunk=state.page_parameter(CHUNK))
    frame = min(state.page_parameter(FRAME), len(room.frames) - 1)
    _controls(step, room, frame, t)
    if step.name is StepName.BATCHING:
        st.html(drawings.timeline_drawing(room, frame, t).figure)
    # A projector has no room for both: the pool is the picture of the step before.
    if step.name is StepName.BLOCKS or not is_presented():
        st.html(drawings.pool_drawing(room, frame, t).figure)


def _controls(step: Step, room: Classroom, frame: int, t: Words) -> None:
    last = len(room.frames) - 1
    with st.container(horizontal=True, key="learn_frames", gap="small", vertical_alignment="bottom"):
        for key, label, icon, shortcut, to in (
            ("learn.frame.before", t("Engine: step back"), ":material/skip_previous:", "P", frame - 1),
            ("learn.frame.after", t("Engine: step on"), ":material/skip_next:", "N", frame + 1),
        ):
            st.button(
                label,
                key=key,
                icon=icon,
                shortcut=shortcut,
                disabled=not 0 <= to <= last,
                on_click=state.set_page_parameter,
                args=(FRAME, to),
            )
        if step.name is StepName.BATCHING:
            st.segmented_control(
                "max_num_batched_tokens",
                list(CHUNKS),
                format_func=count,
                required=True,
                **state.bound(CHUNK, "learn.chunk", takes="default"),
            )
