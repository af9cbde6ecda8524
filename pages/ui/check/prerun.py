"""The guided pre-run of vllm-mindspore on the Check page: settings, log, arithmetic, final settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import streamlit as st
from msgspec.structs import replace
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError, LogError, Notice
from kvcore.base.numbers import count
from kvcore.base.units import gib
from kvcore.base.words import Words, listed, msg
from kvcore.deploy.launch import PORT
from kvcore.engines.registry import engine_of
from kvcore.evidence.log.reader import StartupLog, read_log
from kvcore.evidence.prerun import (
    DEFAULT_LENGTH,
    DEFAULT_UTILIZATION,
    ENGINE,
    VARIABLES,
    PreRun,
    PreRunResult,
    check_model,
    documented_bytes_per_token,
    out_of_memory_remedies,
    settings_from_log,
)
from kvcore.evidence.recognized import find_logged_model, scenario_from_log
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured, Scenario
from pages.ui.check import log as check_log
from pages.ui.check import tabs
from pages.ui.shared import labels, net, notes, numbers, state, undo
from pages.ui.shared.numbers import Limits

TOTAL, MODEL, SHARE, LENGTH = "prerun.total", "prerun.model", "prerun.share", "prerun.length"
BATCH = "prerun.batch"
TEXT, KEPT = "prerun.text", "prerun.kept"
ROOMY_GIB = 1024.0
LATENT_EXAMPLE = "deepseek-ai/DeepSeek-V3"
DEFAULTS: Mapping[str, float | int] = {
    TOTAL: VARIABLES.default_total_gb,
    MODEL: VARIABLES.default_model_gb,
    SHARE: DEFAULT_UTILIZATION,
    LENGTH: DEFAULT_LENGTH,
}
SETTINGS = "prerun.settings"
LARGEST_GB = 1024.0
SMALLEST_SHARE = 0.05
LONGEST = 1 << 24

REMEDIES = {
    VARIABLES.model: msg("Raise the share of the model, below {limit} GB: {values}"),
    "gpu_memory_utilization": msg("Lower --gpu-memory-utilization: {values}"),
    "max_model_len": msg("Lower --max-model-len: {values}"),
    "tensor_parallel_size": msg("Use more cards: --tensor-parallel-size {values}"),
    "data_parallel_size": msg(
        "Spread the experts over more cards: --data-parallel-size {values} --enable-expert-parallel, and the number of "
        "cards as expert_parallel in --additional-config"
    ),
}


def section(t: Words) -> None:
    """All four steps, and what to do when memory runs out."""
    st.caption(
        t(
            "vllm-mindspore does not measure itself at start: you set how much the model may use."
            " One run with a request of the full length shows how much that is."
        )
    )
    scenario = prerun_scenario(state.scenario())
    try:
        planned = roomy_plan(scenario)
    except KvPlannerError as error:
        notes.refusal(error, t)
        return
    prerun = _settings(t)
    if prerun is None:
        return
    _commands(prerun, scenario, t)
    found = _log(t)
    if found is not None:
        log, peak_gb = found
        try:
            check_model(log, scenario.model)
            result = PreRunResult(
                prerun=prerun,
                peak_gb=peak_gb,
                bytes_per_token=bytes_per_token(planned),
                weights_gb=gib(planned.loaded_weights.value),
            )
        except KvPlannerError as error:
            notes.refusal(error, t)
            _offer_logged_model(log, t)
        else:
            _arithmetic(result, scenario, t)
            _final(result, scenario, t)
    _out_of_memory(prerun, scenario, t)
    _latent_note(scenario, t)


def prerun_scenario(scenario: Scenario) -> Scenario:
    """The scenario of the sidebar on an engine that is given its memory."""
    if not engine_of(scenario).measures_memory(scenario):
        return replace(scenario, measured=Measured())
    return replace(
        scenario,
        engine=ENGINE.name,
        engine_version=str(_last_with_variables()),
        kv_cache_dtype="auto",
        accelerator=catalogue.accelerator_from_facts(
            VARIABLES.default_total_gb, ENGINE.facts.vendors[0], None
        ),
        measured=Measured(),
    )


def _last_with_variables() -> Version:
    """The newest release of the engine that is given the memory of a card."""
    return max(own for own, host in ENGINE.releases() if ENGINE.variables_in(host) is not None)


def roomy_plan(scenario: Scenario) -> Plan:
    """The plan with memory for any KV cache; raises a KvPlannerError for what cannot be planned."""
    return plan(replace(scenario, measured=Measured(available_kv_gib=ROOMY_GIB)))


def bytes_per_token(planned: Plan) -> float:
    """KV bytes of one further token on one card."""
    return planned.cache.bytes_per_token if planned.cache is not None else 0.0


@net.callback
def _take_logged_model(log: StartupLog) -> None:
    """Callback: the log's model and number of cards, on the sidebar's card where the engine runs on it."""
    logged, card = scenario_from_log(log, state.scenario()).scenario, state.scenario().accelerator
    is_kept = card is not None and engine_of(logged).runs_on(card)
    undo.take(replace(logged, accelerator=card) if is_kept else logged)


def _offer_logged_model(log: StartupLog, t: Words) -> None:
    logged = find_logged_model(log.model)
    if logged is not None and logged.id != state.scenario().model:
        st.button(
            t("Take the log's model: {model}", model=logged.id),
            key="prerun.logged",
            icon=":material/input:",
            on_click=_take_logged_model,
            args=(log,),
        )


def _keep(key: str, value: float) -> None:
    st.session_state[SETTINGS] = {**st.session_state.get(SETTINGS, {}), key: value}


def _settings_now() -> dict[str, float | int]:
    """The guide's settings, overridden by the scenario's, then by those changed here or read from the log."""
    found = {**DEFAULTS, **_of_scenario(state.scenario()), **st.session_state.get(SETTINGS, {})}
    return {BATCH: found[LENGTH], **found}


def _of_scenario(scenario: Scenario) -> dict[str, float | int]:
    """The settings of the sidebar and the environment. A smaller budget takes from the model, not from the KV cache."""
    found: dict[str, float | int] = {}
    for key, name in ((TOTAL, VARIABLES.total), (MODEL, VARIABLES.model)):
        text = scenario.env.get(name, "")
        if text.isdecimal() and 1 <= int(text) <= LARGEST_GB:
            found[key] = float(text)
    share, length = scenario.gpu_memory_utilization, scenario.max_model_len
    if share is not None and SMALLEST_SHARE <= share <= 1:
        found[SHARE] = share
        if MODEL not in found:
            kv_gb = PreRun().kv_gb
            budget_gb = found.get(TOTAL, VARIABLES.default_total_gb) * share
            found[MODEL] = min(VARIABLES.default_model_gb, max(1.0, float(int(budget_gb - kv_gb))))
    if length is not None and 1 <= length <= LONGEST:
        found[LENGTH] = length
    batch = scenario.max_num_batched_tokens
    if batch is not None and 1 <= batch <= LONGEST:
        found[BATCH] = batch
    return found


def _prerun_of(settings: Mapping[str, float | int]) -> PreRun:
    """Raises KvPlannerError for settings that leave no memory for the KV cache."""
    return PreRun(
        total_gb=float(settings[TOTAL]),
        model_gb=float(settings[MODEL]),
        gpu_memory_utilization=float(settings[SHARE]),
        max_model_len=int(settings[LENGTH]),
        batched_tokens=int(settings[BATCH]),
    )


def _settings(t: Words) -> PreRun | None:
    st.subheader(t("1. Settings of the pre-run"), anchor=False)
    now = _settings_now()
    grid = st.grid(5, min_column_width=210, vertical_alignment="bottom")
    for key, label, limits, step in (
        (TOTAL, VARIABLES.total, Limits(1, LARGEST_GB, is_whole=False), 1),
        (MODEL, VARIABLES.model, Limits(1, LARGEST_GB, is_whole=False), 1),
        (SHARE, "--gpu-memory-utilization", Limits(SMALLEST_SHARE, 1, is_whole=False), 0.01),
        (LENGTH, "--max-model-len", Limits(1, LONGEST), 1024),
        (BATCH, "--max-num-batched-tokens", Limits(1, LONGEST), 1024),
    ):
        take = partial(_keep, key)
        numbers.box(grid.cell(), f"`{label}`", limits, now[key], t, key=key, take=take, step=step)
    try:
        prerun = _prerun_of(now)
    except KvPlannerError as error:
        notes.refusal(error, t)
        return None
    st.caption(
        t("The memory of a card is what npu-smi info shows: 64 or 32 GB. It depends on the hardware alone.")
    )
    notes.notices(prerun.notices, t)
    return prerun


def _model(scenario: Scenario) -> str:
    """The name that the server is started with and asked for."""
    return scenario.model if labels.ID.fullmatch(scenario.model) else "MODEL"


def _shell(exports: Mapping[str, str], scenario: Scenario, flags: Mapping[str, str]) -> str:
    lines = [f"export {name}={value}" for name, value in exports.items()]
    parallel = scenario.parallel
    sizes = {
        "--tensor-parallel-size": parallel.tensor_parallel_size,
        "--data-parallel-size": parallel.data_parallel_size,
    }
    arguments = {**{name: str(size) for name, size in sizes.items() if size > 1}, **flags}
    command = " \\\n".join(
        [
            " ".join((*ENGINE.facts.launch.program, _model(scenario))),
            *(f"  {name}={value}" for name, value in arguments.items()),
            *(("  --enable-expert-parallel",) if parallel.enable_expert_parallel else ()),
        ]
    )
    return "\n".join([*lines, command])


def _commands(prerun: PreRun, scenario: Scenario, t: Words) -> None:
    st.code(_shell(prerun.exports, scenario, prerun.flags), language="bash")
    tokens = count(prerun.max_model_len)
    # The prompt and its answer together have the full length.
    if prerun.requests == 1:
        st.text(
            t(
                "Send one request of {tokens} tokens, so that the prefill takes its largest shape.",
                tokens=tokens,
            )
        )
    else:
        st.text(
            t(
                "Send {requests} {requests:request|requests} of {tokens} tokens at once, so that one step is full.",
                requests=count(prerun.requests),
                tokens=tokens,
            )
        )
    st.caption(
        t(
            "{prompt} tokens of prompt and 1 of answer: the engine refuses a prompt of the full length.",
            prompt=count(prerun.prompt_tokens),
        )
    )
    st.code(prerun.request_command(_model(scenario), PORT), language="bash")


@net.callback
def _take_log() -> None:
    st.session_state[KEPT] = st.session_state[TEXT]
    _adopt_log_settings()


@net.callback
def _take_sample() -> None:
    st.session_state[KEPT] = (check_log.SAMPLES / "prerun.log").read_text("utf-8")
    _adopt_log_settings()


def offer(content: str | bytes, log: StartupLog, t: Words) -> None:
    """A button that opens the log of a pre-run where its peak is used."""
    if isinstance(content, str) and log.worst_rank.peak_used_gib is not None:
        st.button(
            t("Use this peak in the pre-run"),
            key="prerun.open",
            icon=":material/input:",
            on_click=_open,
            args=(content,),
        )


@net.callback
def _open(content: str) -> None:
    st.session_state[KEPT] = content
    _adopt_log_settings()
    state.set_page_parameter(tabs.NAME, tabs.PRERUN)


def _adopt_log_settings() -> None:
    """Callback: copies the log's exports and flags into the fields, where they can still be changed.

    A field that the log does not state keeps its value; the guide's stand in for fields that no start can have.
    """
    try:
        log = read_log(st.session_state[KEPT])
    except LogError:
        return
    try:
        now = _prerun_of(_settings_now())
    except KvPlannerError:
        now = PreRun()
    given = settings_from_log(log, now)
    st.session_state[SETTINGS] = {
        TOTAL: given.total_gb,
        MODEL: given.model_gb,
        SHARE: given.gpu_memory_utilization,
        LENGTH: given.max_model_len,
        BATCH: given.batched_tokens or given.max_model_len,
    }


def _log(t: Words) -> tuple[StartupLog, float] | None:
    """The pasted log and the peak in it, in GB."""
    st.subheader(t("2. Its log"), anchor=False)
    kept = st.session_state.get(KEPT, "")
    st.text_area(
        t("Paste the lines with “actual peak used mem”"),
        key=state.seed(TEXT, kept),
        height=110,
        on_change=_take_log,
    )
    st.button(t("The guide's example"), key="prerun.sample", on_click=_take_sample)
    if not kept.strip():
        return None
    try:
        log = read_log(kept)
    except LogError as error:
        if error.code == "log-not-recognized":  # its next step asks for lines that this step has no use for
            notes.notices((Notice(code="prerun-no-peak"),), t)
        else:
            check_log.refusal(error, "", t)
        return None
    peak = log.worst_rank.peak_used_gib
    if peak is None:
        notes.notices((Notice(code="prerun-no-peak"),), t)
        return None
    st.text(
        t("Peak in use: {size} GB, line {number}", size=f"{peak.value:.1f}", number=str(peak.line_number))
    )
    return log, float(peak.value)


def _arithmetic(result: PreRunResult, scenario: Scenario, t: Words) -> None:
    st.subheader(t("3. The arithmetic"), anchor=False)
    prerun = result.prerun
    length = prerun.max_model_len
    steps = (
        (
            t("KV cache of the pre-run (GB)"),
            f"{prerun.total_gb:g} × {prerun.gpu_memory_utilization:g} − {prerun.model_gb:g} = {prerun.kv_gb:.1f}",
        ),
        (
            t("Weights and activations (GB)"),
            f"{result.peak_gb:.1f} − {prerun.kv_gb:.1f} = {result.model_gb:.1f}",
        ),
        (
            t("KV cache available (GB)"),
            f"{prerun.budget_gb:.1f} − {result.model_gb:.1f} = {result.kv_gb:.1f}",
        ),
        (
            t("Tokens in it"),
            f"{result.kv_gb:.2f} × 2³⁰ ÷ {result.bytes_per_token:,.0f} = {count(result.tokens)}",
        ),
        (
            t("For the model, rounded up to whole GB"),
            f"{prerun.budget_gb:.1f} − {result.final_model_gb} = {result.final_kv_gb:.1f}, "
            + t("{tokens} tokens", tokens=count(result.final_tokens)),
        ),
        (
            t("max_num_seqs"),
            f"{count(result.final_tokens)} ÷ {count(length)} → {result.max_num_seqs}",
        ),
        (
            t("max_num_batched_tokens"),
            t("{tokens}, as in the pre-run", tokens=count(result.max_num_batched_tokens)),
        ),
    )
    st.table(
        {t("Step"): [name for name, _ in steps], t("Numbers"): [numbers for _, numbers in steps]},
        border="horizontal",
        hide_index=True,
    )
    st.caption(
        t(
            "max_num_batched_tokens stays as it was: the peak is measured for steps of {step} tokens and no larger "
            "ones. The guide asks for max_num_seqs × max_model_len; the engine does not. For larger steps set more in "
            "step 1 and repeat the pre-run. A token takes {bytes} bytes on each card for {model}, as on the Plan page.",
            step=count(result.max_num_batched_tokens),
            bytes=f"{result.bytes_per_token:,.0f}",
            model=f"`{scenario.model}`" if labels.ID.fullmatch(scenario.model) else "config.json",
        )
    )
    if result.max_num_seqs == 0:
        st.warning(
            t("Not even one request of this length fits: lower --max-model-len."),
            icon=":material/change_history:",
        )


def _final(result: PreRunResult, scenario: Scenario, t: Words) -> None:
    st.subheader(t("4. The final start"), anchor=False)
    st.code(_shell(result.exports, scenario, result.flags), language="bash")
    prerun = result.prerun
    final = replace(
        scenario,
        gpu_memory_utilization=prerun.gpu_memory_utilization,
        max_model_len=prerun.max_model_len,
        max_num_seqs=max(1, result.max_num_seqs),
        max_num_batched_tokens=result.max_num_batched_tokens,
        env={**scenario.env, **result.exports},
        measured=Measured(batched_tokens=result.max_num_batched_tokens),
    )
    if state.scenario() == final:
        st.caption(t("The sidebar shows this scenario."))
    else:
        st.button(
            t("Use this scenario"),
            key="prerun.take",
            icon=":material/input:",
            on_click=undo.take,
            args=(final,),
        )


def _out_of_memory(prerun: PreRun, scenario: Scenario, t: Words) -> None:
    with st.expander(t("If it runs out of memory, in this order"), icon=":material/warning:"):
        has_experts = read_architecture(scenario.config).moe is not None
        remedies = out_of_memory_remedies(prerun, scenario.parallel, has_experts=has_experts)
        lines = [
            t(REMEDIES[remedy.field], values=listed(t, remedy.values), limit=f"{prerun.budget_gb:.1f}")
            for remedy in remedies
            if remedy.values
        ]
        st.markdown("\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)))


def _latent_note(scenario: Scenario, t: Words) -> None:
    """Notes that latent attention keeps one vector for all heads, while the guide's formula counts every head."""
    entry = catalogue.find_model(LATENT_EXAMPLE)
    architecture = read_architecture(entry.config)
    layers, heads, head_size = (
        architecture.num_layers,
        architecture.num_attention_heads,
        entry.config.raw["v_head_dim"],
    )
    documented = documented_bytes_per_token(layers, heads, head_size)
    example = replace(
        scenario, model=entry.id, config=entry.config, checkpoint=entry.checkpoint, max_model_len=None
    )
    try:
        true = bytes_per_token(roomy_plan(example))
    except KvPlannerError:  # flags of another model, which this one is refused with
        return
    with st.expander(t("A note on latent attention (MLA)"), icon=":material/menu_book:"):
        st.markdown(
            t(
                "The guide computes the KV cache of a DeepSeek-V3 token as layers × heads × head size × 2: "
                "{layers} × {heads} × {head_size} × 2 = **{documented} bytes**. Latent attention keeps one compressed "
                "vector for all heads: **{true} bytes**, {factor} times less. In 16 bits the formula counts the keys "
                "of all heads and no values; both take {both} bytes, {most} times as much. The steps above use the "
                "latent vector.",
                both=f"{2 * documented:,}",
                most=f"{2 * documented / true:.0f}",
                layers=str(layers),
                heads=str(heads),
                head_size=str(head_size),
                documented=f"{documented:,}",
                true=f"{true:,.0f}",
                factor=f"{documented / true:.1f}",
            )
        )
