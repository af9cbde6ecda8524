"""The sidebar: the scenario in the order in which people know the answers, the same on every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvcore.engine.rooms import engine_names
from kvcore.engine.vllm.versions import assumed_version
from kvcore.errors import KvPlannerError
from kvcore.flags.registry import FLAGS
from kvcore.planning import Plan
from kvcore.present import choices, edit
from kvcore.present.text import Words
from kvcore.scenario import AUTO, Runner
from pages.ui import graph_controls, limit_controls, pickers, problems, state
from pages.ui.fold import fold
from pages.ui.state import seed, set_field


def scenario(planned: Plan | KvPlannerError, t: Words) -> None:
    """All controls of the scenario."""
    plan = planned if isinstance(planned, Plan) else None
    pickers.model(t)
    pickers.accelerator(t)
    _tensor_parallel(t)
    limit_controls.context_length(plan, t)
    limit_controls.utilization(plan, t)
    _kv_cache_dtype(t)
    _weight_precision(t)
    box, is_opened = fold(t("More options"), "more")
    if is_opened:
        with box:
            _more(plan, t)


def _changed(field: str, key: str) -> None:
    set_field(field, st.session_state[key])


def _tensor_parallel(t: Words) -> None:
    now = state.scenario().parallel.tensor_parallel_size
    sizes = choices.tensor_parallel_sizes(state.scenario()) or choices.TENSOR_PARALLEL_SIZES
    _segmented(
        "tensor_parallel_size",
        t("Tensor parallel size"),
        sorted({*sizes, now}),
        now,
        t(
            "`--tensor-parallel-size`: GPUs that share every layer. Only sizes that the engine "
            "accepts for this model."
        ),
    )


def _kv_cache_dtype(t: Words) -> None:
    now = state.scenario().kv_cache_dtype
    _segmented(
        "kv_cache_dtype",
        t("KV cache dtype"),
        choices.kv_cache_dtypes(state.scenario()),
        now,
        t(
            "`--kv-cache-dtype`: auto is the model's own. fp8 halves the cache; check the "
            "accuracy of your task. Only what this card and release support."
        ),
    )


def _weight_precision(t: Words) -> None:
    now = state.scenario().quantization or choices.CHECKPOINT
    key = seed("quantization", now)
    st.segmented_control(
        t("Weight precision"),
        choices.weight_precisions(state.scenario()),
        default=now,
        key=key,
        required=True,
        help=t("`--quantization`: auto takes the checkpoint as it is; the others convert it while it loads."),
        on_change=lambda: set_field(
            "quantization", None if st.session_state[key] == choices.CHECKPOINT else st.session_state[key]
        ),
    )


def _more(plan: Plan | None, t: Words) -> None:
    scenario = state.scenario()
    resolved = plan.resolved if plan is not None else None
    _engine(t)
    _choice(
        "runner",
        t("Runner"),
        tuple(Runner),
        scenario.runner,
        t(
            "`--runner`: generate returns text, pooling returns embeddings or classes. auto "
            "decides by the files of the repository."
        ),
    )
    _choice("dtype", t("Model dtype"), FLAGS["dtype"].choices, scenario.dtype, "`--dtype`")
    _choice(
        "kv_cache_dtype",
        t("KV cache dtype, all"),
        FLAGS["kv_cache_dtype"].choices,
        scenario.kv_cache_dtype,
        "`--kv-cache-dtype`",
        "all",
        {
            value: t("{value} (refused here)", value=str(value))
            for value in choices.refused_values(scenario, "kv_cache_dtype", FLAGS["kv_cache_dtype"].choices)
        },
    )
    parallel = scenario.parallel
    _whole("pipeline_parallel_size", t("Pipeline parallel size"), parallel.pipeline_parallel_size)
    _whole("data_parallel_size", t("Data parallel size"), parallel.data_parallel_size)
    _switch("enable_expert_parallel", t("Expert parallelism"), parallel.enable_expert_parallel)
    _optional("max_num_seqs", t("Max sequences at once"), scenario.max_num_seqs, resolved, t)
    _optional(
        "max_num_batched_tokens",
        t("Max batched tokens"),
        scenario.max_num_batched_tokens,
        resolved,
        t,
    )
    _optional("block_size", t("Block size (tokens)"), scenario.block_size, resolved, t)
    _switch("enforce_eager", t("No CUDA graphs (eager)"), scenario.enforce_eager)
    graph_controls.controls(plan, t)
    if choices.keeps_recurrent_states(scenario):
        _recurrent_states(plan, t)
    if choices.can_restart(scenario, plan):
        st.toggle(
            t("Restart: kernels are compiled"),
            key=seed("kernels_compiled", scenario.kernels_compiled),
            help=t(
                "A first start compiles its kernels while it measures, and leaves less for the KV cache. A restart "
                "that finds them in ~/.cache/vllm does not."
            ),
            on_change=_changed,
            args=("kernels_compiled", "kernels_compiled"),
        )
    st.caption(t("Your own figures in GiB per GPU, in place of the estimate. Leave empty to estimate."))
    card = scenario.accelerator
    estimate = plan.memory if plan is not None else None
    _exact(
        "accelerator.memory_gib",
        t("Memory of the card"),
        edit.memory_override_gib(scenario),
        card.memory_gib if card else None,
    )
    measured = scenario.measured
    for field, label, value, part in (
        ("measured.system_gib", t("System and other processes"), measured.system_gib, "system"),
        ("measured.weights_gib", t("Weights"), measured.weights_gib, "weights"),
        ("measured.peak_activation_gib", t("Activations"), measured.peak_activation_gib, "activations"),
        ("measured.non_torch_gib", t("Framework"), measured.non_torch_gib, "framework"),
        ("measured.cuda_graph_gib", t("CUDA graphs"), measured.cuda_graph_gib, "cuda_graphs"),
        (
            "measured.available_kv_gib",
            t("Available for the KV cache"),
            measured.available_kv_gib,
            "available_kv",
        ),
    ):
        predicted = getattr(estimate, part).value / 2**30 if estimate is not None else None
        _exact(field, label, value, predicted)


def _recurrent_states(plan: Plan | None, t: Words) -> None:
    """What only models with recurrent layers ask."""
    scenario = state.scenario()
    caches = {None: AUTO, True: t("on"), False: t("off")}
    _translated(
        "enable_prefix_caching",
        t("Prefix caching"),
        {name: value for value, name in caches.items()},
        caches[scenario.enable_prefix_caching],
        t("`--enable-prefix-caching`: with it, recurrent states are kept for later requests."),
    )
    in_force = plan.resolved.mamba_cache_mode if plan is not None else ""
    modes = choices.mamba_cache_modes(scenario)
    now = scenario.mamba_cache_mode or AUTO
    _translated(
        "mamba_cache_mode",
        t("Recurrent states in the cache"),
        {mode: None if mode == AUTO else mode for mode in (modes if now in modes else (*modes, now))},
        now,
        t(
            "`--mamba-cache-mode`: all keeps a state for every block, align the last ones of a "
            "request. Needs prefix caching; now: {mode}.",
            mode=in_force or "-",
        ),
    )
    for field, label, value in (
        ("mamba_ssm_cache_dtype", t("Dtype of recurrent states"), scenario.mamba_ssm_cache_dtype),
        ("mamba_cache_dtype", t("Dtype of all that recurrent layers keep"), scenario.mamba_cache_dtype),
    ):
        _choice(field, label, choices.mamba_dtypes(field, scenario), value, _flag(field))


def _translated(field: str, label: str, values: dict[str, Any], now: str, help_text: str) -> None:
    """A choice whose words are not the field's values."""
    key = seed(field, now)
    st.selectbox(
        label,
        tuple(values),
        index=tuple(values).index(now),
        key=key,
        help=help_text,
        on_change=lambda: set_field(field, values[st.session_state[key]]),
    )
    problems.beside_control(field, state.translator())


def _engine(t: Words) -> None:
    scenario = state.scenario()
    _choice("engine", t("Engine"), engine_names(), scenario.engine, None)
    own = choices.engine_versions(scenario.engine)
    now = scenario.engine_version or assumed_version(scenario)
    _choice("engine_version", t("Engine version"), own if now in own else (now, *own), now, None)


def _segmented(field: str, label: str, options: Sequence[Any], now: Any, help_text: str) -> None:
    st.segmented_control(
        label,
        options,
        default=now,
        key=seed(field, now),
        required=True,
        help=help_text,
        on_change=_changed,
        args=(field, field),
    )
    problems.beside_control(field, state.translator())


def _choice(
    field: str,
    label: str,
    options: Sequence[str],
    now: str,
    help_text: str | None,
    suffix: str = "",
    names: Mapping[str | None, str] = {},
) -> None:
    key = seed(f"{field}.{suffix}" if suffix else field, now)
    shown = options if now in options else (now, *options)
    st.selectbox(
        label,
        shown,
        index=shown.index(now),
        key=key,
        format_func=lambda value: names.get(value, value),
        help=help_text,
        on_change=_changed,
        args=(field, key),
    )
    problems.beside_control(field, state.translator())


def _whole(field: str, label: str, now: int) -> None:
    low, high = map(int, FLAGS[field].bounds)
    st.number_input(
        label,
        min_value=low,
        max_value=high,
        value=now,
        step=1,
        key=seed(field, now),
        help=_flag(field),
        on_change=_changed,
        args=(field, field),
    )
    problems.beside_control(field, state.translator())


def _optional(field: str, label: str, now: int | None, resolved: Any, t: Words) -> None:
    low, high = map(int, FLAGS[field].bounds)
    st.number_input(
        label,
        min_value=low,
        max_value=high,
        value=now,
        step=1,
        key=seed(field, now),
        placeholder=t("{value} by default", value=f"{getattr(resolved, field):,}") if resolved is not None else "",
        help=_flag(field),
        on_change=_changed,
        args=(field, field),
    )  # fmt: skip
    problems.beside_control(field, state.translator())


def _exact(field: str, label: str, now: float | None, predicted: float | None) -> None:
    low, high = map(float, FLAGS[field].bounds)
    st.number_input(
        label,
        min_value=low,
        max_value=high,
        value=now,
        step=0.1,
        format="%.6g",
        key=seed(field, now),
        placeholder=f"{predicted:.2f}" if predicted is not None else "",
        on_change=_changed,
        args=(field, field),
    )
    problems.beside_control(field, state.translator())


def _switch(field: str, label: str, now: bool) -> None:
    st.toggle(
        label, value=now, key=seed(field, now), help=_flag(field), on_change=_changed, args=(field, field)
    )
    problems.beside_control(field, state.translator())


def _flag(field: str) -> str:
    return f"`--{field.replace('_', '-')}`"
