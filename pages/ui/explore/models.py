"""Explore, second question: every bundled model that the chosen hardware runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from kvcore import catalogue
from kvcore.advice.sweep import cell_scenario, sweep, sweep_of_models
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count, short_count
from kvcore.base.words import Words, msg
from kvcore.catalogue.accelerators import Accelerator
from kvcore.charts.catalogue_rows import TASK_NAMES, kind_of
from kvcore.charts.matrix import ModelRow, model_row
from kvcore.scenario import Scenario
from pages.ui.explore import explored
from pages.ui.explore.cards import gpus_at_most, wanted_requests
from pages.ui.shared import frames, net, notes, state, undo
from pages.ui.shared.parameter_readers import LONGEST_TEXT
from pages.ui.shared.parameters import ALL_TASKS, GPU_LIMITS

TABLE = "explore_models"


def show(t: Words) -> None:
    """A sentence, and a row for each model with a button that takes it to Plan."""
    scenario = state.scenario_at_a_length()
    replicas = scenario.parallel.data_parallel_size
    card = scenario.accelerator or catalogue.find_accelerator("H100-80GB")
    with st.container(horizontal=True, key="explore_question", gap="medium", vertical_alignment="top"):
        wanted, limit = wanted_requests(t), gpus_at_most(replicas, t)
    search = st.text_input(
        t("Search by name"), max_chars=LONGEST_TEXT, width=420, **state.bound("search", "explore_search")
    )
    names = {ALL_TASKS: msg("All"), **{task.value: name for task, name in TASK_NAMES.items()}}
    task = st.segmented_control(
        t("Task"),
        list(names),
        format_func=lambda name: t(names[name]),
        required=True,
        **state.bound("task", "explore_task", takes="default"),
    )
    stages = scenario.parallel.pipeline_parallel_size
    sizes = tuple(size for size in GPU_LIMITS if size * stages <= limit)
    if not sizes:
        st.info(t("The pipeline alone takes more GPUs than that."), icon=":material/filter_alt_off:")
        return
    try:
        rows = _rows(scenario, card, sizes, wanted, t)
    except KvPlannerError as error:
        notes.problem(t("This cannot be planned"), error, t)
        return
    rows = tuple(row for row in rows if task in (ALL_TASKS, kind_of(row.model).task.value))
    found = _named(
        sorted(rows, key=lambda row: (not row.serves(wanted), -kind_of(row.model).parameters)), search
    )
    st.success(
        _sentence(card, limit * replicas, found, wanted, is_searched=bool(search.strip()), t=t),
        icon=":material/inventory_2:",
    )
    st.caption(
        t(
            "Each model on the fewest GPUs that fit the target requests; where none do, on the "
            "most GPUs: those that do first, the largest first. Lengths above a model's own are cut to it. Without a "
            "number of requests, no KV cache bounds them. Choose a row to plan it."
        )
    )
    if not found:
        st.info(t("No bundled model with this name starts here."), icon=":material/search_off:")
        return
    _table(found, scenario, card, wanted, t)


def _named(rows: Sequence[ModelRow], search: str) -> list[ModelRow]:
    """The rows whose models match `search`, best first; all rows where it is empty."""
    if not search.strip():
        return list(rows)
    by_model = {row.model: row for row in rows}
    names = catalogue.search_models(search, limit=len(catalogue.known_ids()))
    return [by_model[name] for name in names if name in by_model]


def _sentence(
    card: Accelerator, limit: int, found: Sequence[ModelRow], wanted: int, *, is_searched: bool, t: Words
) -> str:
    facts = {
        "card": t.card(card.name),
        "gpus": str(limit),
        "serving": count(sum(row.serves(wanted) for row in found)),
        "wanted": count(wanted),
    }
    if is_searched:
        return t(
            "{card}, at most {gpus} GPUs: of the {found} bundled models with this name that "
            "start, {serving} {serving:fits|fit} {wanted} {wanted:request|requests} at once",
            found=count(len(found)),
            **facts,
        )
    return t(
        "{card}, at most {gpus} GPUs: {starting} of {all} bundled models {starting:starts|start}, "
        "{serving} {serving:fits|fit} {wanted} {wanted:request|requests} at once",
        starting=count(len(found)),
        all=count(len(catalogue.model_ids())),
        **facts,
    )


def _rows(
    scenario: Scenario, card: Accelerator, sizes: Sequence[int], wanted: int, t: Words
) -> tuple[ModelRow, ...]:
    """The rows of all models that start; the scenario's own model as it is planned, the others under its flags."""
    stages = scenario.parallel.pipeline_parallel_size
    all_sizes = [size for size in GPU_LIMITS if size * stages <= GPU_LIMITS[-1]]
    swept = explored.found(sweep_of_models(scenario, card, all_sizes, explored.own_key()), t)
    own = catalogue.bundled_model(scenario.model)
    if own is not None and own.config == scenario.config:
        (as_planned,) = sweep(scenario, [own], [card], all_sizes)
        swept = tuple(as_planned if model.model == own.id else model for model in swept)
    rows = (model_row(model, sizes, wanted) for model in swept)
    return tuple(row for row in rows if row is not None)


def _bounded(row: ModelRow, requests: float) -> float | None:
    """Requests at once, nothing where no KV cache bounds them."""
    return round(requests, 2) if row.has_cache else None


def _table(rows: Sequence[ModelRow], scenario: Scenario, card: Accelerator, wanted: int, t: Words) -> None:
    columns: dict[str, list[Any]] = {
        t("Model"): [row.model for row in rows],
        t("GPUs"): [row.cell.gpus for row in rows],
        t("Parameters"): [short_count(kind_of(row.model).parameters) for row in rows],
        t("Requests at once"): [_bounded(row, row.cell.requests) for row in rows],
        t("Serves {wanted}", wanted=count(wanted)): [
            t("yes") if row.serves(wanted) else t("no") for row in rows
        ],
        t("Requests per GPU"): [_bounded(row, row.cell.requests_per_gpu) for row in rows],
        t("Length planned"): [row.max_model_len for row in rows],
        t("Longest request"): [row.cell.longest_request_tokens for row in rows],
        t("KV cache tokens"): [row.cell.tokens for row in rows],
        t("Weights (GiB per GPU)"): [round(row.cell.weights_gib, 2) for row in rows],
    }
    names = [row.model for row in rows]
    sizes = [row.cell.tensor_parallel_size for row in rows]
    frames.show(
        pd.DataFrame(columns),
        key=TABLE,
        height=560,
        on_select=partial(_take_selected, scenario, card, names, sizes),
    )


@net.callback
def _take_selected(scenario: Scenario, card: Accelerator, names: Sequence[str], sizes: Sequence[int]) -> None:
    chosen = st.session_state[TABLE].selection.rows
    if chosen and chosen[0] < len(names):
        entry = catalogue.find_model(names[chosen[0]])
        undo.take_to_plan(cell_scenario(scenario, entry, card, sizes[chosen[0]]))
