"""The tabs of the Check page. A link may open either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.base.words import Words, msg
from pages.ui.shared import net, state
from pages.ui.shared.parameters import CHECK_TABS

NAME: Final = "check"
LOG, FILES, PRERUN = CHECK_TABS
LABELS: Final = {
    LOG: msg("Start-up log"),
    FILES: msg("Files that you deploy"),
    PRERUN: msg("MindSpore pre-run"),
}


def shown(t: Words) -> Sequence[DeltaGenerator]:
    """The tabs of the log, of files and of the pre-run, that of the link in front."""
    labels = {name: t(label) for name, label in LABELS.items()}
    label = labels[state.page_parameter(NAME)]
    key = state.seed(f"check.tabs.{t.language}", label)
    return st.tabs(list(labels.values()), default=label, key=key, on_change=_chosen, args=(key, labels))


@net.callback
def _chosen(key: str, labels: dict[str, str]) -> None:
    state.set_page_parameter(
        NAME, next(name for name, label in labels.items() if label == st.session_state[key])
    )
