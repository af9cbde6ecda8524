"""Little's law where there is no log: arrivals and time in the system give requests at once, and those give cards."""

from __future__ import annotations

from typing import Final

import streamlit as st

from kvcore.advice.roofline import decode_bound
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import DASH, count, short_number
from kvcore.base.words import Words
from kvcore.charts.summary import Card
from kvcore.controls import edit
from kvcore.evidence.carry import carried_over
from kvcore.flags import FLAGS
from kvcore.planning import Plan
from kvcore.workload.limits import Arrivals, Fleet, fleet_for
from pages.ui.shared import elements, numbers, shell, state, undo
from pages.ui.shared.numbers import Limits
from pages.ui.shared.parameters import ANSWER_SPEED, ARRIVALS, FIRST_TOKEN_SECONDS

TOKENS: Final = Limits(1, 1 << 30)
START: Final = Arrivals(
    per_second=2.0, prompt_tokens=1000, answer_tokens=300, first_token_seconds=1.0, tokens_per_second=20.0
)
"""A chat, as the first values of the fields."""


def panel(plan: Plan | KvPlannerError, t: Words) -> None:
    """The inputs, the results, and the links that use them."""
    with st.container(border=True, key="arrivals"):
        st.subheader(t("From arrivals"), anchor=False)
        arrivals = _typed(t)
        fleet = None if isinstance(plan, KvPlannerError) else fleet_for(plan, arrivals)
        _figures(arrivals, fleet, t)
        if isinstance(plan, KvPlannerError) or fleet is None:
            st.caption(_why_no_fleet(plan, arrivals, t))
        else:
            _speed(plan, fleet, arrivals, t)
        _onward(plan, arrivals, fleet, t)


def _typed(t: Words) -> Arrivals:
    grid = st.grid(5, min_column_width=140)
    boxes = (
        (
            t("Arrivals per second"),
            Limits(*ARRIVALS, is_whole=False),
            "arrivals",
            "arrivals",
            START.per_second,
            0.5,
        ),
        (t("Prompt tokens"), TOKENS, "load_prompt", "arrivals.prompt", START.prompt_tokens, 1),
        (t("Answer tokens"), TOKENS, "load_answer", "arrivals.answer", START.answer_tokens, 1),
        (
            t("Seconds to the first token"),
            Limits(*FIRST_TOKEN_SECONDS, is_whole=False),
            "first_token",
            "arrivals.first",
            START.first_token_seconds,
            0.5,
        ),
        (
            t("Answer tokens per second"),
            Limits(*ANSWER_SPEED, is_whole=False),
            "speed",
            "arrivals.speed",
            START.tokens_per_second,
            1,
        ),
    )
    per_second, prompt, answer, first, speed = (
        numbers.of_parameter(grid.cell(), label, limits, name, f"workload.{key}", t, usual, step=step)
        for label, limits, name, key, usual, step in boxes
    )
    return Arrivals(
        per_second=float(per_second),
        prompt_tokens=int(prompt),
        answer_tokens=int(answer),
        first_token_seconds=float(first),
        tokens_per_second=float(speed),
    )


def _figures(arrivals: Arrivals, fleet: Fleet | None, t: Words) -> None:
    gpus = DASH if fleet is None else count(fleet.cards)
    replicas = (
        t("this start cannot carry them")
        if fleet is None
        else t("{replicas} × this start, {held} {held:request|requests} each", replicas=count(fleet.replicas),
               held=count(fleet.requests_per_replica))
    )  # fmt: skip
    figures = (
        Card(
            label=t("A request stays"),
            value=f"{short_number(arrivals.seconds_in_system)} s",
            note=t("{first} s + {answer} tokens / {speed}", first=short_number(arrivals.first_token_seconds, 6),
              answer=count(arrivals.answer_tokens), speed=short_number(arrivals.tokens_per_second, 6)),
        ),
        Card(
            label=t("Requests at once"),
            value=count(arrivals.requests_at_once),
            note=t("{arrivals} per second × {seconds} s", arrivals=short_number(arrivals.per_second, 6),
              seconds=short_number(arrivals.seconds_in_system)),
        ),
        Card(label=t("GPUs"), value=gpus, note=replicas),
    )  # fmt: skip
    elements.card_grid(st.grid(len(figures), min_column_width=190), figures)
    st.caption(
        t(
            "Little's law: requests at once = arrivals per second × seconds in the system. It applies to the mean of "
            "any traffic that the service keeps up with; peaks need more. Each request is counted at its full length."
        )
    )


def _why_no_fleet(plan: Plan | KvPlannerError, arrivals: Arrivals, t: Words) -> str:
    if isinstance(plan, KvPlannerError):
        return t("The engine refuses the present scenario, so its cards cannot be counted.")
    if arrivals.request_tokens > plan.resolved.max_model_len:
        return t(
            "Prompt and answer take {tokens} tokens, more than the context length of {limit}.",
            tokens=count(arrivals.request_tokens),
            limit=count(plan.resolved.max_model_len),
        )
    return t("The present scenario does not start, or has no room for one such request.")


def _speed(plan: Plan, fleet: Fleet, arrivals: Arrivals, t: Words) -> None:
    """A warning where no card can read its memory as fast as the answers are meant to come."""
    bound = decode_bound(plan, fleet.running, arrivals.prompt_tokens)
    if bound is None or arrivals.tokens_per_second <= 1 / bound.seconds_per_token:
        return
    full = decode_bound(plan, fleet.requests_per_replica, arrivals.prompt_tokens) or bound
    kept = max(ANSWER_SPEED[0], int(10 / full.seconds_per_token) / 10)
    st.warning(
        t(
            "With {running} {running:request|requests} at once on a replica the memory bandwidth allows at most "
            "{most} tokens per second for each: answers stay longer than typed, and more requests are at once.",
            running=count(fleet.running),
            most=f"{1 / bound.seconds_per_token:,.1f}",
        ),
        icon=":material/speed:",
    )
    st.button(
        t("Use {most} tokens per second, of a full replica", most=f"{kept:g}"),
        key="workload.arrivals.bound",
        on_click=state.set_page_parameter,
        args=("speed", kept),
    )


def _onward(plan: Plan | KvPlannerError, arrivals: Arrivals, fleet: Fleet | None, t: Words) -> None:
    """The same target on the other pages: replicas on Plan, cards on Explore, a load test under Going live."""
    scenario, wanted = state.scenario(), arrivals.requests_at_once
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        if fleet is not None and _copies(plan, fleet):
            st.button(
                t("Plan with {replicas} {replicas:replica|replicas}", replicas=count(fleet.replicas)),
                key="workload.arrivals.plan",
                icon=":material/check:",
                type="primary",
                on_click=undo.take_to_plan,
                args=(edit.with_field(scenario, "data_parallel_size", fleet.replicas),),
            )
        if (
            wanted <= FLAGS["wanted"].bounds[1]
            and arrivals.request_tokens <= FLAGS["max_model_len"].bounds[1]
        ):
            longer = carried_over(
                scenario, edit.with_field(scenario, "max_model_len", arrivals.request_tokens)
            )
            st.page_link(
                shell.page_at("explore"),
                label=t(
                    "Cards for {requests} such {requests:request|requests} at once, on Explore",
                    requests=count(wanted),
                ),
                icon=":material/grid_view:",
                query_params=state.params(edit.with_field(longer, "wanted", wanted)),
            )
        if fleet is not None:
            load = {
                "section": "going-live",
                "load_requests": str(fleet.running),
                "load_prompt": str(arrivals.prompt_tokens),
                "load_answer": str(arrivals.answer_tokens),
                "load_rate": f"{max(arrivals.per_second / fleet.replicas, ARRIVALS[0]):.6f}".rstrip(
                    "0"
                ).rstrip("."),
            }
            st.page_link(
                shell.page_at("reference"),
                label=t("Load test for {requests} on a replica", requests=count(fleet.running)),
                icon=":material/rocket_launch:",
                query_params={**state.params(), **load},
            )


def _copies(plan: Plan | KvPlannerError, fleet: Fleet) -> bool:
    """Whether data parallelism copies the whole model, so that its ranks are these replicas.

    The ranks of a mixture of experts divide the experts among them: other machines, and other memory, than replicas.
    Source: vllm/docs/serving/data_parallel_deployment.md (0.11.0): expert layers form one group of DP x TP.
    """
    is_dense = not isinstance(plan, KvPlannerError) and plan.architecture.moe is None
    return is_dense and fleet.replicas <= FLAGS["data_parallel_size"].bounds[1]
