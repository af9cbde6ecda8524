"""Going live: the target, checklist, first request, load test, bound on speed, alerts, dashboard, memory check."""

from __future__ import annotations

import streamlit as st
from msgspec.structs import replace

from kvcore.advice.roofline import decode_bound
from kvcore.base.numbers import count, gib_text
from kvcore.base.units import GB
from kvcore.base.words import Words
from kvcore.charts.summary import Card
from kvcore.deploy.first_requests import (
    SCRIPT,
    card_commands,
    first_request,
    memory_check,
    memory_check_commands,
    metrics_command,
)
from kvcore.deploy.going_live import (
    Load,
    alert_rules,
    dashboard,
    default_load,
    load_test,
    target_rate,
)
from kvcore.planning import Plan
from pages.ui.reference import alert_limits, checklist
from pages.ui.shared import elements, numbers, state
from pages.ui.shared.numbers import Limits
from pages.ui.shared.parameters import ARRIVALS

ROLES = (
    "kv_cache_usage",
    "waiting",
    "running",
    "preemptions",
    "request_latency",
    "first_token",
    "output_token",
)


def panel(plan: Plan, t: Words) -> None:
    """Everything before and after the first start."""
    load = _load(plan, t)
    limits = alert_limits.chosen(plan, load)
    checklist.panel(plan, load, limits, t)
    show_first_request(plan, load, t)
    _load_test(plan, load, t)
    _throughput(plan, load, t)
    _monitoring(plan, load, t)
    show_watching(plan, t)
    show_memory_check(plan, load, t)


def _load(plan: Plan, t: Words) -> Load:
    """The target load, at first what the plan has room for."""
    start = default_load(plan)
    boxes = (
        (t("Target requests at once"), Limits(1, 1 << 20), "load_requests", start.requests),
        (t("Prompt tokens"), Limits(1, 1 << 30), "load_prompt", start.prompt_tokens),
        (t("Answer tokens"), Limits(1, 1 << 30), "load_answer", start.answer_tokens),
    )
    with st.container(horizontal=True):
        requests, prompt, answer = (
            numbers.of_parameter(st.container(), label, limits, name, name, t, usual)
            for label, limits, name, usual in boxes
        )
        load = Load(requests=int(requests), prompt_tokens=int(prompt), answer_tokens=int(answer))
        rate = numbers.of_parameter(
            st.container(), t("Target rate (requests per second)"), Limits(*ARRIVALS, is_whole=False), "load_rate",
            "load_rate", t, _rounded(target_rate(plan, load)), step=0.5,
        )  # fmt: skip
    is_stated = state.page_parameter("load_rate") is not None
    return replace(load, per_second=float(rate)) if is_stated else load


def _rounded(rate: float | None) -> float:
    """A rate with three figures, within what the box takes."""
    return min(max(float(f"{rate or 1.0:.3g}"), ARRIVALS[0]), ARRIVALS[1])


def _load_test(plan: Plan, load: Load, t: Words) -> None:
    test = load_test(plan, load)
    st.subheader(t("Load test"), anchor=False)
    sized = t(
        "At least five minutes: {count} requests are as many as the memory bandwidth could answer in that time.",
        count=count(test.num_prompts),
    )
    unsized = t("The bandwidth of this card is not known: raise --num-prompts until it takes five minutes.")
    st.caption(
        t(
            "{count} {count:request|requests} in flight, 150 % of the target.",
            count=count(test.requests_at_once),
        )
        + " "
        + (sized if test.is_sized else unsized)
    )
    st.code(test.command, language="bash")
    if not test.rate_command:
        return
    st.caption(
        t(
            "150 % of the target rate: {rate} requests per second for five minutes, however slow the engine is. If the "
            "queue grows to the end, the rate is more than this replica carries.",
            rate=f"{test.requests_per_second:g}",
        )
        + " "
        + (
            t("The target rate is the one above.")
            if load.per_second is not None
            else t(
                "The target rate is at most this, by Little's law and the memory bandwidth: type your own."
            )
        )
    )
    st.code(test.rate_command, language="bash")
    st.caption(
        t(
            "The post-mortem loads the server with wrk: that sends one body again and again, which the prefix cache "
            "answers, and counts responses, not tokens."
        )
    )


def _throughput(plan: Plan, load: Load, t: Words) -> None:
    st.subheader(t("Upper bound on speed"), anchor=False)
    one = decode_bound(plan, 1, load.prompt_tokens)
    all_of_them = decode_bound(plan, load.requests, load.prompt_tokens)
    if one is None or all_of_them is None:
        st.caption(t("The bandwidth of this card is not known, so no bound can be given."))
        return
    per_replica = t("tokens per second, upper bound")
    found_cards = (
        (t("One request alone"), f"≤ {count(one.tokens_per_second)}", per_replica),
        (t("{count} {count:request|requests} together", count=count(load.requests)),
         f"≤ {count(all_of_them.tokens_per_second)}", per_replica),
        (t("Time per output token (TPOT)"), f"≥ {all_of_them.seconds_per_token * 1000:.1f} ms",
         t("with {count} {count:request|requests}, lower bound", count=count(load.requests))),
    )  # fmt: skip
    elements.card_grid(
        st.grid(3, min_column_width=190),
        (Card(label=label, value=value, note=note) for label, value, note in found_cards),
    )
    st.caption(
        t(
            "Every step reads at least {weights} of weights and {kv} of keys and values on each GPU, at {bandwidth} "
            "GB/s: (weights + KV) / bandwidth. Real engines are slower: computing, communication and scheduling are "
            "not in it. Speculative decoding makes several tokens in a step.",
            weights=gib_text(all_of_them.weight_bytes),
            kv=gib_text(all_of_them.kv_bytes),
            bandwidth=count(all_of_them.bandwidth_bytes_per_second / GB),
        )
    )
    st.caption(
        t(
            "TTFT, time to first token: the queue and the prompt. TPOT, time per output token: between two tokens of "
            "one answer. TPS, tokens per second: 1 / TPOT for one request, requests / TPOT for the server."
        )
    )


def _monitoring(plan: Plan, load: Load, t: Words) -> None:
    limits = alert_limits.chosen(plan, load)
    st.subheader(t("Alerts and dashboard"), anchor=False)
    st.caption(
        t(
            "For the metrics that vLLM {version} exports, with thresholds from this plan and this target.",
            version=str(plan.resolved.version),
        )
    )
    metrics = plan.resolved.engine.metrics(plan.resolved.version, plan.resolved.is_v0)
    prefix = plan.resolved.engine.facts.watching.prefix
    st.code("\n".join(metrics[role].name for role in ROLES if role in metrics), language=None)
    if "prefix_cache_hits" in metrics and prefix == "vllm":
        st.caption(
            t(
                "The Llama-2-70B post-mortem names metrics that do not exist: instead of "
                "request_latency_seconds use {latency}, instead of kv_cache_hit use {hits} / "
                "{queries}.",
                latency=f"`{metrics['request_latency'].name}`",
                hits=f"`{metrics['prefix_cache_hits'].name}`",
                queries=f"`{metrics['prefix_cache_queries'].name}`",
            )
        )
    alert_limits.edit(plan, load, t)
    rules, board = alert_rules(plan, limits), dashboard(plan, limits)
    with st.expander(t("Prometheus alert rules"), icon=":material/notifications:"):
        st.code(rules, language="yaml")
    with st.expander(t("Grafana dashboard"), icon=":material/monitoring:"):
        st.caption(
            t("In Grafana: Dashboards, New, Import; then choose the Prometheus data source above the panels.")
        )
        st.code(board, language="json", height=260)
    with st.container(horizontal=True):
        for name, text in ((f"{prefix}-alerts.yaml", rules), (f"{prefix}-dashboard.json", board)):
            elements.download(t("Download {name}", name=name), name, text, key=f"download_{name}")


def show_first_request(plan: Plan, load: Load, t: Words) -> None:
    """The request as curl and as the SDK sends it."""
    request = first_request(plan, load)
    st.subheader(t("First request"), anchor=False)
    if request.sdk is None:
        st.code(request.curl, language="bash", wrap_lines=True)
        return
    curl, sdk = st.tabs(["curl", t("OpenAI SDK")])
    curl.code(request.curl, language="bash", wrap_lines=True)
    sdk.code(request.sdk, language="python", wrap_lines=True)


def show_watching(plan: Plan, t: Words) -> None:
    """Commands for the server's metrics and the memory of the cards."""
    st.subheader(t("While it serves"), anchor=False)
    st.caption(t("Metrics of this release, without the buckets of histograms; then the memory of the cards."))
    st.code(metrics_command(plan) + card_commands(plan), language="bash", wrap_lines=True)


def show_memory_check(plan: Plan, load: Load, t: Words) -> None:
    """The script to download, and how to call it."""
    st.subheader(t("Memory check"), anchor=False)
    st.caption(
        t(
            "A script without dependencies that asks the driver, not PyTorch: “profile” shows what a short and a long "
            "request add to each card, “leak” runs next to the load test and fails when memory keeps growing. "
            "torch.cuda.empty_cache() in a client does neither: the workers are other processes."
        )
    )
    st.code(memory_check_commands(plan, load), language="bash", wrap_lines=True)
    with st.container(horizontal=True):
        elements.download(
            t("Download {name}", name=SCRIPT),
            SCRIPT,
            memory_check(),
            key="download_memory_check",
            icon=":material/download:",
        )
    with st.expander(SCRIPT, icon=":material/code:"):
        st.code(memory_check(), language="python", wrap_lines=True)
