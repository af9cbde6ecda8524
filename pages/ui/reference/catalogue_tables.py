"""The catalogues as tables, with one search over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import streamlit as st
from msgspec.structs import asdict

from kvcore.base.words import Words
from kvcore.catalogue.models import Rank
from kvcore.charts.catalogue_rows import RANK_NAMES, accelerator_rows, model_rows, sibling_rows, version_rows
from pages.ui.shared import frames, state

ROWS_SHOWN = 420
"""Height of a long table in pixels."""


def tables(t: Words) -> None:
    """Models, accelerators, engine versions: facts, sources, dates."""
    query = st.text_input(
        t("Search the catalogue"), placeholder="qwen3, h200, 0.33 …", icon=":material/search:",
        **state.bound("find", "catalogue_query"),
    )  # fmt: skip
    with st.spinner(t("Reading the catalogue …"), show_time=False):
        models = model_rows()
    _table(
        t("Models"),
        models,
        {
            "id": t("Model"),
            "model_type": t("Type"),
            "attention": t("Cache"),
            "layers": t("Layers"),
            "heads": t("Heads"),
            "kv_heads": t("KV heads"),
            "context_tokens": t("Context (tokens)"),
            "weights_gib": t("Weights (GiB)"),
            "kv_kib_per_token": t("KV per token (KiB)"),
            "rank": t("Kind of source"),
            "source": t("Source"),
            "checked": t("Checked"),
        },
        query,
        t,
    )
    st.caption(t("Weights and KV per token: on one GPU, with the newest vLLM and its defaults."))
    _table(
        t("Models known by name"),
        sibling_rows(),
        {
            "id": t("Model"),
            "base": t("Config of"),
            "format": t("Format"),
            "rank": t("Kind of source"),
            "source": t("Source"),
            "checked": t("Checked"),
        },
        query,
        t,
    )
    st.caption(
        t(
            "Nobody has read the config of these: each is planned with that of another model, stored as its name says. "
            "The Hub's own file is taken instead wherever it can be had."
        )
    )
    _table(
        t("Accelerators"),
        accelerator_rows(),
        {
            "id": t("Id"),
            "name": t("Name"),
            "vendor": t("Vendor"),
            "memory_gib": t("Memory (GiB)"),
            "is_exact": t("Exact"),
            "bandwidth_gb_s": t("Bandwidth (GB/s)"),
            "interconnect": t("Link between cards"),
            "capability": t("Capability"),
            "source": t("Source"),
            "checked": t("Checked"),
        },
        query,
        t,
    )
    st.caption(
        t("Memory is what torch reports. Exact: read in published logs; otherwise from the driver's figure.")
    )
    _table(
        t("Engine versions"),
        version_rows(),
        {
            "engine": t("Engine"),
            "version": t("Version"),
            "runs_on": t("Runs on vLLM"),
            "generation": t("Generation"),
            "utilization": t("Default utilization"),
            "source": t("Source"),
        },
        query,
        t,
    )


def _named(row: dict[str, Any], t: Words) -> dict[str, Any]:
    """The row with the kind of its source in words."""
    rank = row.get("rank")
    return {**row, "rank": t(RANK_NAMES[rank])} if isinstance(rank, Rank) else row


def _table(title: str, rows: Sequence[Any], columns: Mapping[str, str], query: str | None, t: Words) -> None:
    words = (query or "").lower().split()
    found = [
        row
        for row in (_named(asdict(row), t) for row in rows)
        if all(word in " ".join(str(value) for value in row.values()).lower() for word in words)
    ]
    st.subheader(f"{title} · {len(found)}", anchor=False)
    if not found:
        st.caption(t("No results."))
        return
    table = pd.DataFrame(found, columns=list(columns)).rename(columns=dict(columns))
    height: int | Literal["auto"] = ROWS_SHOWN if len(found) > 10 else "auto"
    frames.show(table, height=height, alt=title)
