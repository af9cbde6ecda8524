"""The sidebar: the scenario in the order in which people know the answers, the same on every page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import GIVEN
from kvcore.base.units import gib
from kvcore.base.words import Words, msg
from kvcore.controls import edit, offers
from kvcore.controls.in_force import CASES, assumed_text
from kvcore.engines.registry import engine_of
from kvcore.flags import FLAGS, Flag, Kind, Shown, Widget, fields_of
from kvcore.planning import Plan
from kvcore.scenario import AUTO, value_of
from pages.ui.shared import elements, labels, net, numbers, problems, shell, state
from pages.ui.shared.elements import fold, pair
from pages.ui.shared.state import seed, set_field
from pages.ui.sidebar import additional_controls, command_source, limit_controls, own_controls, pickers


def sidebar(planned: Plan | KvPlannerError, t: Words) -> None:
    """The scenario and the language."""
    with st.sidebar:
        with net.under("sidebar", t):
            scenario(planned, t)
        shell.language_switch(t)


def scenario(planned: Plan | KvPlannerError, t: Words) -> None:
    """All controls of the scenario."""
    plan = planned if isinstance(planned, Plan) else None
    _start(t)
    pickers.model(t)
    pickers.accelerator(t)
    _tensor_parallel(t)
    _dtype(t)
    limit_controls.context_length(plan, t)
    limit_controls.utilization(plan, t)
    _number(FLAGS["wanted"], state.scenario().wanted, t("no target"), t)
    for name in offers.main_flags(state.scenario()):
        _of_experts(name, plan, t)
    _weight_precision(t)
    _segmented("kv_cache_dtype", offers.kv_cache_dtypes(state.scenario()), state.scenario().kv_cache_dtype, t)
    box, is_opened = fold(t("More options"), "more")
    if is_opened:
        with box:
            _more(plan, t)


def _label(flag: Flag, t: Words) -> str:
    return labels.label_of(flag, t, engine_of(state.scenario()))


def _help(flag: Flag, t: Words) -> str | None:
    return labels.help_of(flag, t, engine_of(state.scenario()))


def _start(t: Words) -> None:
    """What an upgrade changes, and what people bring: the engine's release, and a command or file to paste."""
    scenario = state.scenario()
    release = scenario.engine_version or engine_of(scenario).assumed_version(scenario)
    with st.container(horizontal=True, key="start", gap="small"):
        engine, is_open = elements.other_ways(f"{scenario.engine} {release}", "engine_choice", None)
        if is_open:
            with engine:
                _engine(t)
                _engine_version(t)
        pasted, is_open = elements.other_ways(
            t("Paste a command"), command_source.POPOVER, ":material/content_paste:"
        )
        if is_open:
            with pasted:
                command_source.field(t)
    command_source.outcome(t)


def _tensor_parallel(t: Words) -> None:
    """A slider over the sizes that the engine accepts for this model and card, and a field for any size."""
    flag, now = FLAGS["tensor_parallel_size"], state.scenario().parallel.tensor_parallel_size
    sizes = sorted({*(offers.tensor_parallel_sizes(state.scenario()) or offers.TENSOR_PARALLEL_SIZES), now})
    with pair(flag.name):
        _number(flag, now, "", t)
        if len(sizes) > 1:
            _slider(flag, sizes, now, t)


def _dtype(t: Words) -> None:
    """A slider over the dtypes of a model; one that the card lacks is marked, and the line below says what to do."""
    flag, scenario = FLAGS["dtype"], state.scenario()
    now, refused = offers.dtype_of(scenario), offers.dtype_refusals(scenario)
    marked = {name: t("{value} (refused here)", value=name) for name in refused}
    key = seed(flag.name, now)
    st.select_slider(
        _label(flag, t),
        offers.DTYPES,
        value=now,
        format_func=lambda name: marked.get(name, name),
        key=key,
        help=_help(flag, t),
        on_change=net.taking(key, partial(set_field, flag.name), offers.DTYPES),
    )
    problems.next_to_control(flag.name, t)
    for name, error in refused.items():
        st.caption(t("{value} does not run here. {step}.", value=f"`{name}`", step=t.next_step(error)))


def _slider(flag: Flag, options: Sequence[Any], now: Any, t: Words) -> None:
    """The slider beside a field of the same name."""
    key = seed(f"{flag.name}.slider", now)
    st.select_slider(
        t("{label} (slider)", label=_label(flag, t)),
        options,
        value=now,
        key=key,
        label_visibility="collapsed",
        on_change=net.taking(key, partial(set_field, flag.name), options),
    )


def _of_experts(name: str, plan: Plan | None, t: Words) -> None:
    """The controls that split a mixture of experts, next to the tensor parallel size."""
    flag, now = FLAGS[name], value_of(state.scenario(), name)
    if flag.kind is Kind.INTEGER:
        _segmented(name, sorted({*offers.REPLICAS, now}), now, t)
    else:
        _by_kind(flag, plan, t)


def _weight_precision(t: Words) -> None:
    now = state.scenario().quantization or offers.CHECKPOINT
    _segmented("quantization", offers.weight_precisions(state.scenario()), now, t, {offers.CHECKPOINT: None})


def _segmented(name: str, options: Sequence[Any], now: Any, t: Words, values: Mapping[Any, Any] = {}) -> None:
    key = seed(name, now)
    st.segmented_control(
        _label(FLAGS[name], t),
        options,
        default=now,
        key=key,
        required=True,
        format_func=labels.plain,
        help=_help(FLAGS[name], t),
        on_change=net.taking(key, lambda value: set_field(name, values.get(value, value)), options),
    )
    problems.next_to_control(name, t)


def _more(plan: Plan | None, t: Words) -> None:
    shown = (*offers.main_flags(state.scenario()), *AT_THE_TOP)
    fields = {
        name: flag for name, flag in fields_of().items() if name not in shown and _is_of_use(flag, plan)
    }
    listed = {name for names in HEADINGS.values() for name in names}
    others = [name for name in fields if name not in listed]
    for heading, names in HEADINGS.items():
        own = [
            name
            for name in (*names, *(others if heading == FOR_OTHERS else ()))
            if name in OBJECTS or (name in fields and (name in _OWN or fields[name].widget is Widget.BY_KIND))
        ]
        rows = {
            head: [flag for flag in fields_of(head).values() if _is_of_use(flag, plan)] for head in OBJECTS
        }
        if any(rows.get(name, True) for name in own):
            st.markdown(f"**{t(heading)}**")
        for name in own:
            if name in OBJECTS:
                _object(name, rows[name], plan, t)
            elif name in _OWN:
                _OWN[name](plan, t)
            else:
                _by_kind(fields[name], plan, t)
    additional_controls.keys(lambda flag: _is_of_use(flag, plan), lambda flag: _by_kind(flag, plan, t), t)
    own_controls.show(t)
    _measured(plan, t)


def _object(head: str, rows: Sequence[Flag], plan: Plan | None, t: Words) -> None:
    if rows:
        st.caption(t(OBJECTS[head]))
    for flag in rows:
        _by_kind(flag, plan, t)
    if head == "surroundings" and plan is not None and (assumed := assumed_text(plan, t)):
        st.caption(assumed)


def _measured(plan: Plan | None, t: Words) -> None:
    scenario = state.scenario()
    st.caption(t("Your own figures in GiB per GPU, in place of the estimate. Leave empty to estimate."))
    card = scenario.accelerator
    memory = FLAGS["accelerator.memory_gib"]
    _number(memory, edit.memory_override_gib(scenario), "" if card is None else f"{card.memory_gib:.2f}", t)
    estimate = plan.memory if plan is not None else None
    for part in GIVEN:
        flag = FLAGS[f"measured.{part.field}"]
        predicted = "" if estimate is None else f"{gib(getattr(estimate, part.estimate).value):.2f}"
        _number(flag, value_of(scenario, flag.name), predicted, t)


def _is_of_use(flag: Flag, plan: Plan | None) -> bool:
    scenario = state.scenario()
    if engine_of(scenario).lacks(flag.name):
        return False
    if flag.shown is Shown.RECURRENT:
        return offers.keeps_recurrent_states(scenario)
    if flag.shown is Shown.RESTART:
        return offers.can_restart(scenario, plan)
    if flag.shown is Shown.IMAGES:
        return offers.takes_images(scenario)
    if flag.shown is Shown.EXPERTS:
        return offers.has_experts(scenario)
    if flag.shown is Shown.SPARSE:
        return offers.attends_sparsely(scenario)
    if flag.shown is Shown.REPLICAS:
        return scenario.parallel.data_parallel_size > 1
    return flag.shown is Shown.ALWAYS or scenario.parallel.ranks_per_replica > 1


def _by_kind(flag: Flag, plan: Plan | None, t: Words) -> None:
    """The control of a registry row, with the scenario's value."""
    now = value_of(state.scenario(), flag.name)
    if flag.kind is Kind.BOOLEAN and flag.default is None:
        words = {None: AUTO, True: t("on"), False: t("off")}
        _select(
            flag.name, tuple(words.values()), words[now], t, {word: value for value, word in words.items()}
        )
    elif flag.kind is Kind.BOOLEAN:
        _switch(flag, bool(now), t)
    elif flag.parent == "surroundings" and flag.kind is Kind.CHOICE:
        options = (UNKNOWN, *flag.choices)
        names = {case: t(CASES[case]) for case in options}
        _select(flag.name, options, str(now or UNKNOWN), t, {UNKNOWN: None}, names=names)
    elif flag.kind is Kind.TEXT:
        _text(flag, now or "", t)
    elif flag.kind is Kind.CHOICE:
        _select(flag.name, tuple(type(now)) if isinstance(now, StrEnum) else flag.choices, now, t)
    else:
        resolved = (
            None if plan is None or flag.default is not None else getattr(plan.resolved, flag.name, None)
        )
        unknown = t(CASES[UNKNOWN]) if flag.parent == "surroundings" else ""
        _number(flag, now, unknown if resolved is None else t("{value} by default", value=f"{resolved:,}"), t)


def _number(flag: Flag, now: float | None, placeholder: str, t: Words) -> None:
    """A number box with the bounds of the request; empty where the engine chooses."""
    numbers.box(
        st,
        _label(flag, t),
        numbers.Limits(*flag.bounds, is_whole=flag.kind is Kind.INTEGER),
        now,
        t,
        key=flag.name,
        take=partial(set_field, flag.name),
        is_optional=flag.default is None,
        placeholder=placeholder,
        help=_help(flag, t),
    )
    problems.next_to_control(flag.name, t)


def _text(flag: Flag, now: str, t: Words) -> None:
    key = seed(flag.name, now)
    st.text_input(
        _label(flag, t),
        value=now,
        max_chars=flag.characters,
        key=key,
        placeholder=t(CASES[UNKNOWN]),
        help=_help(flag, t),
        on_change=net.taking(key, lambda text: set_field(flag.name, text.strip() or None)),
    )
    problems.next_to_control(flag.name, t)


def _switch(flag: Flag, now: bool, t: Words) -> None:
    st.toggle(
        _label(flag, t),
        value=now,
        key=seed(flag.name, now),
        help=_help(flag, t),
        on_change=net.taking(flag.name, partial(set_field, flag.name)),
    )
    problems.next_to_control(flag.name, t)


def _select(
    name: str,
    options: Sequence[str],
    now: str,
    t: Words,
    values: Mapping[str, Any] = {},
    *,
    suffix: str = "",
    label: str = "",
    help_text: str | None = None,
    names: Mapping[Any, str] = {},
) -> None:
    """A select box; `values` are the field's values where the labels differ."""
    key = seed(f"{name}{suffix}", now)
    shown = tuple(options) if now in options else (now, *options)
    st.selectbox(
        label or _label(FLAGS[name], t),
        shown,
        index=shown.index(now),
        key=key,
        format_func=lambda value: names.get(value, value),
        help=help_text or _help(FLAGS[name], t),
        on_change=net.taking(key, lambda value: set_field(name, values.get(value, value)), shown),
    )
    problems.next_to_control(name, t)


def _engine(t: Words) -> None:
    _select("engine", FLAGS["engine"].choices, state.scenario().engine, t)


def _engine_version(t: Words) -> None:
    scenario = state.scenario()
    options, assumed = offers.engine_versions(scenario.engine), engine_of(scenario).assumed_version(scenario)
    if engine_of(scenario).facts.unstated is None:
        _select("engine_version", options, scenario.engine_version or assumed, t)
        return
    now, names = scenario.engine_version or AUTO, {AUTO: t("not named: as {version}", version=assumed)}
    _select("engine_version", (AUTO, *options), now, t, {AUTO: None}, names=names)


def _every_kv_cache_dtype(plan: Plan | None, t: Words) -> None:
    """Every KV cache dtype; those that card or release refuse are marked."""
    del plan
    name, scenario = "kv_cache_dtype", state.scenario()
    refused = offers.refused_values(scenario, name, FLAGS[name].choices)
    _select(
        name,
        FLAGS[name].choices,
        scenario.kv_cache_dtype,
        t,
        suffix=".all",
        label=t("KV cache dtype, all"),
        help_text=f"`{FLAGS[name].spelling}`",
        names={value: t("{value} (refused here)", value=str(value)) for value in refused},
    )


def _mamba_cache_mode(plan: Plan | None, t: Words) -> None:
    name, scenario = "mamba_cache_mode", state.scenario()
    in_force = plan.resolved.mamba_cache_mode if plan is not None else ""
    now = scenario.mamba_cache_mode or AUTO
    help_text = t(FLAGS[name].help, mode=in_force or "-")
    _select(name, offers.state_choices(name, scenario), now, t, {AUTO: None}, help_text=help_text)


def _mamba_dtype(name: str, t: Words) -> None:
    scenario = state.scenario()
    _select(name, offers.state_choices(name, scenario), value_of(scenario, name), t)


AT_THE_TOP: Final = ("engine", "engine_version")
_OWN: Final[Mapping[str, Callable[[Plan | None, Words], None]]] = {
    "kv_cache_dtype": _every_kv_cache_dtype,
    "max_cudagraph_capture_size": limit_controls.largest_graph,
    "cudagraph_mode": limit_controls.graph_mode,
    "mamba_cache_mode": _mamba_cache_mode,
    "mamba_cache_dtype": lambda plan, t: _mamba_dtype("mamba_cache_dtype", t),
    "mamba_ssm_cache_dtype": lambda plan, t: _mamba_dtype("mamba_ssm_cache_dtype", t),
}
"""Controls under "More options" whose values depend on more than their row."""
UNKNOWN: Final = "unknown"
OBJECTS: Final = {
    "mm_processor_kwargs": msg("Bounds of images and video. Leave empty for the processor's own."),
    "surroundings": msg(
        "The machine that the engine starts on. Unknown is fine: the interval then spans the cases."
    ),
}
"""Objects whose fields have controls, with the caption above them."""
HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    msg("Model and weights"): ("runner", "mm_processor_kwargs"),
    msg("KV cache and prefixes"): (
        "kv_cache_dtype",
        "block_size",
        "enable_prefix_caching",
        "mamba_cache_mode",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
    ),
    msg("Batch and graphs"): (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enforce_eager",
        "max_cudagraph_capture_size",
        "cudagraph_mode",
    ),
    msg("Parallelism"): ("pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"),
    msg("Host and tiers"): (
        "node_memory_gib",
        "shm_gib",
        "kv_offloading_size",
        "kv_offloading_backend",
        "cpu_offload_gb",
        "other_engines",
        "link_gb_s",
    ),
    msg("Host and measured values"): ("kernels_compiled", "surroundings"),
}
"""The fields of "More options" by what they are about, each once."""
FOR_OTHERS: Final = "Batch and graphs"
"""The heading of a field that stands under none."""
