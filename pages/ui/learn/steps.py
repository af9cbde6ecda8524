"""The way through the steps of the Learn page: back, next, the number of the step, all of it in the link."""

from __future__ import annotations

import streamlit as st

from kvcore.explain.derivation import STEPS, StepName
from kvcore.explain.reference import POST_MORTEM, RULE_OF_THUMB
from kvcore.scenario import link
from kvcore.texts.words import Words
from pages.ui.learn import guess
from pages.ui.shared import net, state, undo

PARAMETER = "step"
PAGINATION = "learn.pagination"


def chosen() -> StepName:
    """The step that the link names."""
    return STEPS[state.page_parameter(PARAMETER) - 1]


def way(name: StepName, t: Words) -> None:
    """Back, next and the numbers; the arrow keys press the two buttons."""
    number = STEPS.index(name) + 1
    with st.container(horizontal=True, key="learn_way", vertical_alignment="center", gap="small"):
        st.button(
            t("Back"),
            key="learn.back",
            shortcut="Left",
            disabled=number == 1,
            on_click=_go,
            args=(number - 1,),
        )
        st.button(
            t("Next"),
            key="learn.next",
            shortcut="Right",
            disabled=number == len(STEPS),
            on_click=_go,
            args=(number + 1,),
        )
        # A key of its own for each step: a seeded pagination warns of its default, which it always has.
        st.pagination(
            len(STEPS),
            default=number,
            max_visible_pages=len(STEPS),
            key=f"{PAGINATION}.{number}",
            on_change=_picked,
            args=(number,),
        )
        guess.switch(t)
        st.toggle(
            t("Present"),
            **state.bound("present", "learn.present"),
            help=t("The lesson alone, for a projector"),
        )


def further(name: StepName, t: Words) -> None:
    """The next step, below a long answer."""
    number = STEPS.index(name) + 1
    if number < len(STEPS):
        with st.container(key="learn_further"):
            st.button(
                t("On to step {number}", number=str(number + 1)),
                key="learn.further",
                icon=":material/arrow_forward:",
                on_click=_go,
                args=(number + 1,),
            )


def ends(t: Words, *, offers_undo: bool) -> None:
    """Worked examples to go through, below the step; the way back from them, where nothing above it offers it."""
    with st.container(horizontal=True, key="learn_examples", vertical_alignment="center", gap="small"):
        st.caption(t("Step through a published example:"), width="content")
        for key, label, example in (
            ("learn.rule_of_thumb", t("Qwen3-32B on 8 × RTX 4090"), RULE_OF_THUMB),
            ("learn.post_mortem", t("Llama-2-70B on 4 × A100"), POST_MORTEM),
        ):
            params = {field: str(value) for field, value in example.items()}
            st.button(label, key=key, type="tertiary", on_click=_load, args=(params,))
        if offers_undo:
            undo.offer(t)
    st.caption(
        t("Computed in bytes, shown rounded.")
        + " "
        + t("“Qwen3-32B on 8 × RTX 4090”, by yorickbao, CC BY 4.0.")
    )


def _go(number: int) -> None:
    """A step by its number and not by one more: the browser may report one press twice."""
    state.set_page_parameter(PARAMETER, number)


def _picked(number: int) -> None:
    _go(st.session_state[f"{PAGINATION}.{number}"])


@net.callback
def _load(params: dict[str, str]) -> None:
    undo.take(link.decode(params).scenario)
