"""The plan in one line, one sentence and four cards."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvcore.advice.curve import ConcurrencyCurve
from kvcore.advice.fixes import Fix, FixPair
from kvcore.advice.refusals import Accepted
from kvcore.cache.spec import CacheKind
from kvcore.evidence.calibration import fields_by_origin
from kvcore.explain.numbers import any_cache, bytes_per_token_in_all
from kvcore.planning import Plan, Verdict
from kvcore.quantity import Quantity
from kvcore.scenario import Measured, Origin, Scenario
from kvcore.scenario.request import UNNAMED_MODEL
from kvcore.scenario.settings import settings_in_force
from kvcore.texts.words import DASH, Words, concurrency_text, count, gib_text, kib_text, whole_requests
from kvcore.workload.limits import is_above_model


class Outcome(StrEnum):
    """What a person has to do: nothing, look again, or change something."""

    FITS = "fits"
    CAUTION = "caution"
    FAILS = "fails"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """The verdict in words."""

    outcome: Outcome
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One figure: its name, value, what it is per and how sure, and where it comes from."""

    label: str
    value: str
    note: str
    help: str


_MODEL_ID: Final = re.compile(r"[\w./: -]{1,200}", re.ASCII)
_OUTCOMES: Final = {
    Verdict.FITS: Outcome.FITS,
    Verdict.TIGHT: Outcome.CAUTION,
    Verdict.CONTEXT_TOO_LONG: Outcome.CAUTION,
    Verdict.NO_KV_MEMORY: Outcome.FAILS,
    Verdict.WEIGHTS_DO_NOT_FIT: Outcome.FAILS,
}


def spare_bytes(plan: Plan) -> float:
    """KV memory on one rank beyond what one request needs; negative when that much is missing."""
    available = plan.available_kv_bytes or 0
    needed = plan.cache.needed_bytes if plan.cache is not None else 0
    return available - needed


def waiting_seats(plan: Plan) -> int | None:
    """`max_num_seqs` where it, and not the KV cache, bounds the requests at once on one replica; None elsewhere."""
    seats = plan.resolved.max_num_seqs
    if plan.cache is None or not any(plan.specs) or plan.cache.max_concurrency <= seats:
        return None
    return seats


def requests_at_once(plan: Plan) -> float:
    """Requests of full length that run at once on one replica: what fits in the KV cache, at most `max_num_seqs`.

    The engine prints the first of the two alone.
    """
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    return min(held, plan.resolved.max_num_seqs)


def verdict_sentence(plan: Plan, t: Words) -> Sentence:
    """Whether it fits, how many requests at once, and by how much; first what it starts only with."""
    outcome, text = _OUTCOMES[plan.verdict], _verdict_text(plan, t)
    if plan.verdict in (Verdict.FITS, Verdict.TIGHT) and is_above_model(plan):
        outcome = Outcome.CAUTION
        text = t(
            "Starts only with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1: without it the engine refuses more than the model's own "
            "{limit} tokens. {verdict}",
            limit=count(plan.resolved.derived_max_model_len),
            verdict=text,
        )
    return Sentence(outcome=outcome, text=text)


def _verdict_text(plan: Plan, t: Words) -> str:
    cache, spare = plan.cache, spare_bytes(plan)
    left, missing = gib_text(max(0.0, spare)), gib_text(max(0.0, -spare))
    match plan.verdict:
        case Verdict.FITS if not any(plan.specs):
            return t("Fits: the model keeps nothing of a request, {spare} per GPU to spare", spare=left)
        case Verdict.FITS:
            return t(
                "Fits: {requests}, {spare} per GPU to spare", requests=requests_words(plan, t), spare=left
            )
        case Verdict.TIGHT:
            return t(
                "Tight: {requests}, but only {spare} per GPU to spare, within the estimate's error",
                requests=requests_words(plan, t),
                spare=left,
            )
        case Verdict.CONTEXT_TOO_LONG:
            return t(
                "Starts only with a shorter context: room for {longest} tokens, one request needs {tokens}; {missing} "
                "per GPU missing",
                longest=count(cache.longest_request_tokens if cache is not None else 0),
                tokens=count(plan.resolved.max_model_len),
                missing=missing,
            )
        case Verdict.NO_KV_MEMORY:
            return t(
                "Does not fit: the weights load, but no memory is left for the KV cache; {missing} per GPU missing",
                missing=missing,
            )
        case Verdict.WEIGHTS_DO_NOT_FIT:
            return t(
                "Does not fit: the weights alone are larger than the budget; {missing} per GPU missing",
                missing=missing,
            )


def requests_words(plan: Plan, t: Words) -> str:
    """How many requests of full length run at once, and in brackets the figure that the engine prints."""
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    printed, seats, whole = concurrency_text(held), waiting_seats(plan), whole_requests(held)
    if seats is not None:
        text = t(
            "{requests} full-length requests at once (max_num_seqs; the KV cache has room for {printed})",
            requests=count(seats),
            printed=printed,
        )
    elif whole == 1:
        text = t("1 full-length request at once ({printed}×)", printed=printed)
    else:
        text = t(
            "{requests} full-length requests at once ({printed}×)", requests=count(whole), printed=printed
        )
    replicas = plan.scenario.parallel.data_parallel_size
    return (
        t("{requests} on each of {replicas} replicas", requests=text, replicas=count(replicas))
        if replicas > 1
        else text
    )


def model_name(scenario: Scenario) -> str:
    """The model as every page calls it: its id, or `config.json` where a name could be read as markup.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> model_name(scenario_from_request({"model": "Qwen/Qwen3-8B"}))
        'Qwen/Qwen3-8B'
    """
    return scenario.model if _MODEL_ID.fullmatch(scenario.model) else UNNAMED_MODEL


def _measured_words(measured: Measured, t: Words) -> tuple[str, ...]:
    """Whether parts are given, and how far they were measured in this configuration."""
    origins = fields_by_origin(measured)
    if Origin.CARRIED in origins:
        return (t("with figures carried over from another setting"),)
    if Origin.FITTED in origins:
        return (t("with figures measured and fitted to a log"),)
    return (t("with measured figures"),) if origins else ()


def scenario_line(plan: Plan, t: Words) -> tuple[str, ...]:
    """What is set, after the model's name: the head, and every other setting that is not the engine's own."""
    measured = _measured_words(plan.scenario.measured, t)
    settings = (setting.text for setting in settings_in_force(plan.scenario, t))
    return (*scenario_head(plan, t), *settings, *measured)


def scenario_head(plan: Plan, t: Words) -> tuple[str, ...]:
    """Card and count, replicas, length, utilization, KV dtype, engine."""
    parallel, resolved = plan.scenario.parallel, plan.resolved
    cards = parallel.ranks_per_replica
    return (
        f"{plan.accelerator.name} × {cards}",
        *((t("{count} replicas", count=str(parallel.data_parallel_size)),) if parallel.data_parallel_size > 1 else ()),
        t("{tokens} tokens", tokens=count(resolved.max_model_len)),
        t("utilization {share}", share=f"{resolved.gpu_memory_utilization:g}"),
        t("KV {dtype}", dtype=resolved.kv_cache_dtype),
        f"{resolved.engine} {resolved.engine_version}",
    )  # fmt: skip


def cards(plan: Plan, curve: ConcurrencyCurve | None, t: Words) -> tuple[Card, ...]:
    """Concurrency, KV cache tokens, KV per token, longest single request."""
    cache, resolved = plan.cache, plan.resolved
    has_pool = cache is not None and cache.num_blocks > 0
    starts = has_pool and cache is not None and cache.fits
    missing = t("no memory is left")
    ranks = plan.scenario.parallel.ranks_per_replica
    ample = any_cache(plan)
    figures = cache.figures if cache is not None and has_pool else None
    per_token = ample.figures.bytes_per_token if ample is not None else None
    keeps_none = not any(plan.specs)
    note = _concurrency_note(plan, curve, t) if starts else t("the engine stops at start")
    return (
        Card(
            label=t("Requests at once"),
            value=concurrency_text(requests_at_once(plan)) if starts and not keeps_none else DASH,
            note=t("nothing is kept of a request") if keeps_none else note,
            help=_help(
                t("Requests of full context length that fit in the KV cache at once; at most "
                  "max_num_seqs ({seats}) run. More fit if they are shorter. The range is the 80 "
                  "% interval.",
                  seats=count(resolved.max_num_seqs)),
                figures.concurrency if figures else None,
            ),
        ),
        Card(
            label=t("KV cache tokens"),
            value=count(cache.tokens) if cache is not None and has_pool else DASH,
            note=t("per replica") if has_pool else missing,
            help=_help(
                t("The figure that the engine prints as GPU KV cache size."), figures.tokens if figures else None
            ),
        ),
        Card(
            label=t("KV per token"),
            value=kib_text(per_token.value) if per_token is not None and per_token.value else DASH,
            note=t("per GPU, {size} in all", size=kib_text(bytes_per_token_in_all(plan).value))
            if ranks > 1
            else t("per GPU"),
            help=_help(t("What each further token of a request takes on one GPU."), per_token),
        ),
        Card(
            label=t("Longest request"),
            value=count(cache.longest_request_tokens) if cache is not None and cache.longest_request_tokens else DASH,
            note=t("model limit {tokens}", tokens=count(resolved.derived_max_model_len)) if has_pool else missing,
            help=_help(
                t("The largest --max-model-len that the engine accepts at start with this memory."),
                figures.longest if figures else None,
            ),
        ),
    )  # fmt: skip


def _concurrency_note(plan: Plan, curve: ConcurrencyCurve | None, t: Words) -> str:
    if waiting_seats(plan) is not None and plan.cache is not None:
        held = concurrency_text(plan.cache.max_concurrency)
        return t("per replica, by max_num_seqs; the KV cache has room for {held}", held=held)
    if curve is None or plan.resolved.max_model_len not in curve.lengths:
        return t("per replica")
    index = curve.lengths.index(plan.resolved.max_model_len)
    low, high = curve.low[index], curve.high[index]
    if math.isclose(low, high, rel_tol=5e-3):
        return t("per replica")
    return t("per replica, {low}–{high}", low=concurrency_text(low), high=concurrency_text(high))


def _help(meaning: str, quantity: Quantity | None) -> str:
    if quantity is None or not quantity.formula:
        return meaning
    return f"{meaning}\n\n`{quantity.symbolic}`\n\n`= {quantity.substituted}`"


def fix_label(fix: Fix, t: Words) -> str:
    """What a fix changes, as a button says it."""
    value = f"{fix.value}"
    match fix.field:
        case "max_model_len":
            return t("Context length {value}", value=count(float(value)))
        case "kv_cache_dtype":
            return t("KV cache dtype {value}", value=value)
        case "gpu_memory_utilization":
            return t("GPU memory utilization {value}", value=value)
        case "max_num_seqs":
            return t("At most {value} sequences", value=value)
        case "max_num_batched_tokens":
            return t("At most {value} batched tokens", value=count(float(value)))
        case "max_cudagraph_capture_size":
            return t("CUDA graphs of at most {value} tokens", value=count(float(value)))
        case "enforce_eager":
            return t("No CUDA graphs")
        case "kernels_compiled":
            return t("Start it again: its kernels are compiled then")
        case "mamba_cache_mode":
            return t("Mamba cache mode {value}", value=value)
        case "enable_prefix_caching":
            return t("No prefix caching")
        case "tensor_parallel_size":
            return t("Tensor parallel size {value}", value=value)
        case "quantization":
            return t("Weights in {value}", value=value)
        case "accelerator":
            return t("A larger card: {value}", value=fix.plan.accelerator.name)
        case _:
            return f"{fix.field} = {value}"


def pair_label(pair: FixPair, t: Words) -> str:
    """What a pair of fixes changes, as one button says it."""
    field, value = pair.first
    first = fix_label(Fix(field=field, value=value, plan=pair.second.plan), t)
    return t("{first} + {second}", first=first, second=fix_label(pair.second, t))


def fix_result(fix: Fix, t: Words) -> str:
    """What comes of it."""
    if fix.plan.cache is None:
        return ""
    if not any(fix.plan.specs):
        return t("fits")
    requests = count(whole_requests(requests_at_once(fix.plan)))
    if fix.verdict is Verdict.TIGHT:
        return t("tight, {requests} at once", requests=requests)
    return t("{requests} at once", requests=requests)


def accepted_label(accepted: Accepted, t: Words) -> str:
    """The change in words."""
    value = f"{accepted.value}"
    match accepted.field:
        case "tensor_parallel_size":
            return t("Tensor parallel size {value}", value=value)
        case "enable_expert_parallel":
            return t("Whole experts on each rank")
        case "engine_version":
            return t("Release {value}", value=value)
        case "accelerator":
            return t("Another card: {value}", value=accepted.plan.accelerator.name)
        case "quantization":
            return t("Weights as the checkpoint has them")
        case field:
            return t("Without {field}", field=field)


def state_mode_text(plan: Plan, t: Words) -> str:
    """One sentence on the Mamba cache mode that is in force; "" for a model without recurrent states."""
    resolved = plan.resolved
    spec = next((spec for specs in plan.specs for spec in specs if spec.kind is CacheKind.MAMBA), None)
    if spec is None:
        return ""
    if resolved.mamba_cache_mode == "all":
        return t(
            "Mamba cache mode all: the recurrent state is kept every {size} tokens, so that a request takes as many "
            "blocks for it as for attention.",
            size=count(spec.block_size),
        )
    if resolved.mamba_cache_mode == "align":
        return t(
            "Mamba cache mode align: a request keeps its last recurrent states, and prefixes are shared in steps of "
            "{size} tokens.",
            size=count(spec.block_size),
        )
    return t(
        "Mamba cache mode none: a request keeps one recurrent state, and later requests cannot use it again."
    )
