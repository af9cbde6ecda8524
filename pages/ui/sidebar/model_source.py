"""Models that the catalogue does not have: by their id on the Hugging Face Hub, or from a config.json, with the
headers of the weight files where no family reads the class."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple
from uuid import uuid4

import streamlit as st
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.untrusted import parse_json_object, utf8_text
from kvcore.base.words import Words
from kvcore.catalogue.models import Checkpoint
from kvcore.deploy.launch import MODEL_PLACE
from kvcore.hub import LOOKUPS, HubModel
from kvcore.hub import requests as hub_requests
from kvcore.hub.requests import HEADERS_LIMIT_BYTES
from kvcore.model.config import MAX_CONFIG_BYTES, ModelConfig
from kvcore.model.headers import FIELD, HeadersReader
from kvcore.wire import link
from kvcore.wire.request import UNNAMED_MODEL, known_checkpoint, scenario_from_request
from pages.ui.shared import labels, net, problems, state

LARGEST_UPLOAD_MIB = 8
"""Largest upload; a config that is too large is refused in words, not by the widget."""
POPOVER = "model_sources"
"""Whether the popover is open."""
CONFIG_LABEL = UNNAMED_MODEL
CONFIG_NAME = "config_name"
ASKER = "_hub_asker"
"""Key that tells this session's look-ups from those of others."""
NAMED = "config_named"
"""The name that this session gave to a config."""
HEADERS_FILE = "headers_file"
REFUSED = "_model_refused"
"""The last model that was refused because no family reads its class."""
UNREAD = "unknown-architecture"
WRITE_HEADERS = """\
python3 -c "
import glob, json, struct
found = {}
for name in glob.glob('model*.safetensors'):
    with open(name, 'rb') as file:
        found |= json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
json.dump(found, open('headers.json', 'w'))
"
"""
"""The command to run next to the weight files: it reads only their headers."""


class Refused(NamedTuple):
    """A model whose class no family reads, and the place that says so."""

    place: str
    name: str
    config: ModelConfig
    checkpoint: Checkpoint


@net.callback
def choose(name: str | None) -> None:
    """Callback: a model of the catalogue."""
    if name is None or (name == state.scenario().model and state.lost_model() is None):
        return
    entry = catalogue.find_model(name)
    _attempt(entry.id, entry.config, entry.checkpoint, "model")


def other_model(t: Words) -> None:
    """In a popover: the two other ways to name a model, each with its error."""
    offline = is_offline()
    st.text_input(
        t("Model id on the Hugging Face Hub"),
        key="hub_id",
        max_chars=200,
        placeholder="owner/name",
        disabled=offline,
        help=t("Reads config.json and the sizes of the weight files; no weights."),
    )
    st.button(t("Look up"), on_click=look_up, args=("hub_id",), disabled=offline)
    show_error("hub_id", t)
    if offline:
        switch = hub_requests.SWITCH if hub_requests.is_off() else "HF_HUB_OFFLINE"
        st.caption(t("This server works without the Hub ({switch}).", switch=switch))
    elif owners := hub_requests.owners():
        st.caption(t("This server asks only about models of {owners}.", owners=", ".join(sorted(owners))))
    st.text_area(t("Or paste a config.json"), key="config_text", height=140, placeholder='{"model_type": …}')
    st.text_input(
        t("Name or path to use in commands"),
        key=CONFIG_NAME,
        max_chars=200,
        placeholder=MODEL_PLACE,
        on_change=_rename,
    )
    show_error(CONFIG_NAME, t)
    st.button(t("Use this config"), on_click=_use_text, args=("config_text",))
    show_error("config_text", t)
    st.file_uploader(
        labels.upload(t("Or upload it"), ("json",), t, MAX_CONFIG_BYTES >> 20),
        type=["json"],
        key="config_file",
        max_upload_size=LARGEST_UPLOAD_MIB,
        on_change=_use_upload,
    )
    show_error("config_file", t)
    _headers(t)


def _headers(t: Words) -> None:
    """Asks for the headers with which an unknown class can be planned, once one was refused."""
    refused: Refused | None = st.session_state.get(REFUSED)
    if refused is None:
        return
    error = problems.at(refused.place)
    if (error is None or error.code != UNREAD) and problems.at(HEADERS_FILE) is None:
        return
    st.file_uploader(
        labels.upload(t("Headers of the weight files"), ("json",), t, HEADERS_LIMIT_BYTES >> 20),
        type=["json"],
        key=HEADERS_FILE,
        max_upload_size=HEADERS_LIMIT_BYTES >> 20,
        on_change=_use_headers,
        help=t(
            "Names and shapes of all tensors: with them a class that is not supported yet is planned too."
        ),
    )
    st.caption(t("This writes them, where the weight files are:"))
    st.code(WRITE_HEADERS, language="bash")
    show_error(HEADERS_FILE, t)


@net.callback
def _use_headers() -> None:
    """Callback: plans the refused model again with the uploaded headers."""
    upload, refused = st.session_state.get(HEADERS_FILE), st.session_state.get(REFUSED)
    if upload is None or refused is None:
        return
    try:
        text = utf8_text(upload.getvalue(), field=FIELD)
        reader = HeadersReader()
        reader.feed(text)
        headers = reader.headers()
    except KvPlannerError as error:
        problems.keep(HEADERS_FILE, error)
        return
    size = refused.checkpoint.total_size or headers.stored_bytes
    _attempt(
        refused.name,
        dataclasses.replace(refused.config, headers=headers),
        replace(refused.checkpoint, total_size=size),
        HEADERS_FILE,
    )


@net.callback
def ask(name: str = "") -> None:
    """Callback: opens the other ways to name a model, with an id of the Hub."""
    st.session_state[POPOVER] = True
    st.session_state["hub_id"] = name


def is_offline() -> bool:
    """Whether this server never asks the Hub."""
    return hub_requests.is_offline() or hub_requests.is_off()


def unsaved(t: Words) -> None:
    """Below the choice of model: notes what the address bar does not keep."""
    if not link.carries_configs(state.scenario()):
        st.caption(t("This config.json is too long for the link: reloading the page loses it."))


def show_error(place: str, t: Words) -> None:
    """Why the model was refused in that place; the one before stays."""
    problems.show(place, t("The model was not changed."), t)


@net.callback
def look_up(key: str) -> None:
    """Callback: asks the Hub for the id in the field `key`."""
    fetch_and_use(st.session_state.get(key, "").strip(), key)


@net.callback
def fetch_and_use(name: str, place: str) -> None:
    """Callback: asks the Hub for `name`; `place` says what went wrong."""
    try:
        found = fetched(name)
    except KvPlannerError as error:
        problems.keep(place, error)
        return
    _attempt(name, found.config, found.checkpoint, place)


def fetched(name: str) -> HubModel:
    """The Hub's model of that id. Raises HubError."""
    return LOOKUPS.look_up(name, asker=st.session_state.setdefault(ASKER, uuid4().hex))


@net.callback
def _use_text(key: str) -> None:
    _use_json(st.session_state.get(key, ""), key)


@net.callback
def _use_upload() -> None:
    upload = st.session_state.get("config_file")
    if upload is None:
        problems.clear()
        return
    try:
        text = utf8_text(upload.getvalue(), field="config")
    except KvPlannerError as error:
        problems.keep("config_file", error)
        return
    _use_json(text, "config_file")


def _use_json(text: str, place: str) -> None:
    name = st.session_state.get(CONFIG_NAME, "").strip() or CONFIG_LABEL
    try:
        raw = parse_json_object(text, max_bytes=MAX_CONFIG_BYTES, field="config")
        described = scenario_from_request({"model": name, "config": raw})
    except KvPlannerError as error:
        problems.keep(place, error)
        return
    st.session_state[NAMED] = described.model
    _attempt(described.model, described.config, described.checkpoint, place)


@net.callback
def _rename() -> None:
    """Callback: renames a config that was given before its name."""
    now = state.scenario()
    if now.model not in (CONFIG_LABEL, st.session_state.get(NAMED)):
        return
    side_file = now.config.hf_quant_config
    request = {
        "model": st.session_state[CONFIG_NAME].strip() or CONFIG_LABEL,
        "config": dict(now.config.raw),
        "hf_quant_config": None if side_file is None else dict(side_file),
        "headers": None if now.config.headers is None else now.config.headers.raw,
    }
    try:
        named = scenario_from_request(request)
    except KvPlannerError as error:
        problems.keep(CONFIG_NAME, error)
        return
    problems.clear()
    st.session_state[NAMED] = named.model
    checkpoint = known_checkpoint(named.model, named.config, now.checkpoint)
    state.set_scenario(replace(now, model=named.model, config=named.config, checkpoint=checkpoint))


def _attempt(name: str, config: ModelConfig, checkpoint: Checkpoint, place: str) -> None:
    try:
        state.set_model(name, config, known_checkpoint(name, config, checkpoint))
    except KvPlannerError as error:
        problems.keep(place, error)
        if error.code == UNREAD and config.headers is None:
            st.session_state[REFUSED] = Refused(place, name, config, checkpoint)
        return
    problems.clear()
    st.session_state.pop(REFUSED, None)
    st.session_state[POPOVER] = False
