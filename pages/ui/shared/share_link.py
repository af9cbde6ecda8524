"""Share: the present page as a link and as a QR code, on every page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from urllib.parse import urlsplit, urlunsplit

import streamlit as st

from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.charts.plan_report import MAX_QR_CHARACTERS, NOT_CARRIED, qr_image
from kvcore.planning import Plan
from kvcore.wire import link
from kvcore.wire.link_names import LANGUAGE
from pages.ui.shared import elements, net, state

LARGE, CODE = "share.large", "share.code"
LONGEST_LINK = 8000
"""Characters that proxies let through; most of them cut request lines at 8 KiB."""


def plan_address(planned: Plan) -> str:
    """The link of a scenario on the Plan page and nothing else: short enough to type."""
    params = link.encode(link.written_out(planned))
    here = urlsplit(st.context.url or "http://localhost:8501/learn")
    folder = (here.path or "/").rpartition("/")[0]
    return urlunsplit((here.scheme, here.netloc, f"{folder}/", link.query_string(params), ""))


def address(path: str, changes: Mapping[str, str | None] | None = None) -> str:
    """The present link of the page at `path`: scenario, pins, page parameters, language; with release and share of the
    card written out, so that it means the same with a later release. `changes` replace parameters, None removes one.
    """
    planned = state.planned()
    kept = link.written_out(planned) if isinstance(planned, Plan) else state.scenario()
    params = {**state.params(kept), LANGUAGE: state.language().value}
    for name, value in (changes or {}).items():
        params.pop(name, None)
        if value is not None:
            params[name] = value
    here = urlsplit(st.context.url or f"http://localhost:8501/{path}")
    return urlunsplit((here.scheme, here.netloc, here.path or "/", link.query_string(params), ""))


def button(t: Words) -> None:
    """The button, and the panel that it opens."""
    key = f"share_link.{t.language}"
    box = st.popover(t("Share"), icon=":material/share:", key=key, on_change="rerun", width="content")
    if not box.open:
        return
    shared = address(st.session_state["_path"])
    with box:
        st.caption(t("This page as it stands: scenario, filters, pins and language."))
        st.code(shared, language=None, wrap_lines=True)
        config_to_send("share_link.config", t)
        if len(shared) > LONGEST_LINK:
            st.warning(
                t(
                    "{count} characters: some proxies and chat programs cut a link at 8,000. Remove pins, or send the "
                    "config.json as a file.",
                    count=count(len(shared)),
                ),
                icon=":material/link_off:",
            )
        _code(shared, "kv-qr", t)
        if _image(shared):
            _switch(t("Full size, for a projector"), "fullscreen", "share.enlarge", is_large=True)


def large_code(t: Words) -> None:
    """The code over the whole page while the switch is on."""
    if st.session_state.get(LARGE):
        _code(address(st.session_state["_path"]), "kv-qr kv-qr-large", t)
        _switch(t("Close the QR code"), "close", "share.close", is_large=False)


def _switch(text: str, icon: str, key: str, *, is_large: bool) -> None:
    """A button that shows the code over the whole page, or closes it."""
    st.button(text, icon=f":material/{icon}:", key=key, on_click=_show_large, args=(is_large,))


@net.callback
def _show_large(is_large: bool) -> None:
    st.session_state[LARGE] = is_large


def _code(shared: str, style: str, t: Words) -> None:
    image = _image(shared)
    if image:
        # Streamlit takes an inline SVG out of its HTML, and leaves an image.
        st.html(f'<img class="{style}" alt="{escape(t("QR code of this link"))}" src="{escape(image)}">')
    else:
        st.caption(
            t(
                "This link is too long for a QR code: {count} characters, {most} fit.",
                count=count(len(shared)),
                most=count(MAX_QR_CHARACTERS),
            )
        )


def _image(shared: str) -> str:
    """The code of the link, drawn once and kept in the session, like the link itself."""
    drawn: tuple[str, str] | None = st.session_state.get(CODE)
    if drawn is None or drawn[0] != shared:
        drawn = st.session_state[CODE] = shared, qr_image(shared)
    return drawn[1]


def config_to_send(key: str, t: Words) -> None:
    """A download of the config.json, where it is too long for the link."""
    scenario = state.scenario()
    if link.carries_configs(scenario):
        return
    st.warning(t(NOT_CARRIED), icon=":material/link_off:")
    elements.download(
        t("Download {name}", name="config.json"),
        "config.json",
        json.dumps(scenario.config.raw, indent=2),
        key=key,
    )
