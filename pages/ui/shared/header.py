"""The header of every page: links to the others, the share button, what is measured, what a limit told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from kvcore.base.words import Words
from pages.ui.fair import notices
from pages.ui.shared import net, notes, share_link, shell


@contextmanager
def around_page(t: Words) -> Iterator[None]:
    """Draws the header above the page: before it on a visit, after its figures where the browser has a header."""
    with net.under("head", t):
        top = st.container(horizontal=True, key="top", gap="small", vertical_alignment="center")
        share_link.large_code(t)
        notes.measurements(t)
        notices.show(t)
    is_shown = shell.is_shown()
    if not is_shown:
        _links(top, t)
    yield
    if is_shown:
        _links(top, t)


def _links(top: Any, t: Words) -> None:
    with net.under("top", t), top:
        shell.links()
        share_link.button(t)
