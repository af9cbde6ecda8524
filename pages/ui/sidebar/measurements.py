"""The chips that say on every page which given parts replace predicted ones and where they come from, and
remove them.
"""

from __future__ import annotations

from typing import Final

import streamlit as st
from msgspec.structs import replace

from kvcore.base.parts import GIVEN_LABELS
from kvcore.base.words import Words, listed
from kvcore.charts.comparison import ORIGIN_LABELS
from kvcore.evidence.calibration import fields_by_origin
from kvcore.scenario import Measured, Origin
from pages.ui.shared import net, state

LOOKS: Final = {
    Origin.MEASURED: (":material/straighten:", "violet"),
    Origin.FITTED: (":material/join_inner:", "blue"),
    Origin.CARRIED: (":material/redo:", "orange"),
}


def chip(t: Words) -> None:
    """Shown only while the scenario carries given parts; one for each origin."""
    given = fields_by_origin(state.scenario().measured)
    if not given:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="measurements"):
        for origin, parts in given.items():
            names = listed(t, (t(GIVEN_LABELS[part]) for part in parts))
            icon, color = LOOKS[origin]
            st.badge(t(ORIGIN_LABELS[origin], parts=names), icon=icon, color=color)
        st.button(
            t("Back to the estimate"),
            key="measurements.remove",
            icon=":material/close:",
            type="tertiary",
            on_click=_remove,
        )


@net.callback
def _remove() -> None:
    state.set_scenario(replace(state.scenario(), measured=Measured()))
