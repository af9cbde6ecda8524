"""The last net: an unexpected exception becomes a refusal, and the server's log gets its type and place alone.

Streamlit's own stop and rerun are no `Exception`, so they pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import streamlit as st

from kvcore.base.errors import defect
from kvcore.base.words import Words

Given = ParamSpec("Given")
ERROR = "input_error"
"""The error that `notes.repairs` shows once, on the run after a callback."""


class _PageEndError(Exception):
    """Nothing is wrong: the page has no more to say."""


def end_page() -> NoReturn:
    """Ends this page alone; after `st.stop` the sidebar, which comes later, would not be drawn."""
    raise _PageEndError


@contextmanager
def under(place: str, t: Words) -> Iterator[None]:
    """Draws a refusal in place of the rest of this part of the page."""
    try:
        yield
    except _PageEndError:
        pass
    except Exception as error:  # the last net: whatever it is, the other parts of the page are drawn
        found = defect(error)
        with st.container(border=True, key=f"net.{place}", gap="xsmall"):
            st.error(f"**{t('This part of the page failed')}**", icon=":material/block:")
            st.text(f"{t.error(found)}\n{t('Next: {step}', step=t.next_step(found))}")
            st.caption(f":small[`{found.code}`]")


def outside(error: Exception) -> bool:
    """The same for what fails before a page is drawn: a value that a browser sends and no control has."""
    found = defect(error)
    st.error(found.message, icon=":material/block:")
    st.caption(f":small[`{found.code}`]")
    return True


def callback(change: Callable[Given, None]) -> Callable[Given, None]:
    """A callback whose failure changes nothing and is shown like every other error."""

    @wraps(change)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        before = st.session_state.get("scenario")
        try:
            change(*args, **kwargs)
        except Exception as error:  # the last net: a callback that raises stops the page before it draws
            st.session_state["scenario"] = before
            st.session_state[ERROR] = defect(error)

    return run


def taking(
    key: str, change: Callable[[Any], object], options: Collection[object] | None = None
) -> Callable[[], None]:
    """A callback that passes the value of the control `key` to `change`; nothing where the control is gone.

    Two changes of one moment come together, and the first may take the control of the second away, or change its
    language: a browser sends a choice by its words, and may still send those of before. What is none of `options`
    changes nothing.
    """

    @callback
    def take() -> None:
        if key in st.session_state and (options is None or st.session_state[key] in options):
            change(st.session_state[key])

    return take
