"""The plan in one line, one sentence and four cards."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.fixes import Fix, FixPair, starts_lower
from kvcore.advice.target import Served, served
from kvcore.advice.vary import ConcurrencyCurve
from kvcore.base.numbers import (
    DASH,
    concurrency_text,
    count,
    gib_text,
    kib_text,
    plain,
    rough_requests,
    whole_requests,
)
from kvcore.base.quantity import Quantity
from kvcore.base.words import Words
from kvcore.cache.spec import CacheKind
from kvcore.controls.in_force import settings_in_force
from kvcore.engine.rank_memory import TOO_LITTLE_FREE
from kvcore.evidence.calibration import fields_by_origin
from kvcore.explain.numbers import any_cache, bytes_per_token_in_all
from kvcore.planning import Plan, Tightness, Verdict
from kvcore.scenario import Origin, Scenario
from kvcore.texts import LABELS
from kvcore.wire.request import UNNAMED_MODEL
from kvcore.workload.limits import is_above_model


class Outcome(StrEnum):
    """The action left to the person: none, look again, or change something."""

    FITS = "fits"
    CAUTION = "caution"
    FAILS = "fails"


class Sentence(Struct, frozen=True, kw_only=True):
    """The verdict in words."""

    outcome: Outcome
    text: str


class Card(Struct, frozen=True, kw_only=True):
    """One figure: its name, its value, its scope and certainty, and where it comes from."""

    label: str
    value: str
    note: str
    help: str = ""


_MODEL_ID: Final = re.compile(r"[\w./: -]{1,200}", re.ASCII)
_OUTCOMES: Final = {
    Verdict.FITS: Outcome.FITS,
    Verdict.TIGHT: Outcome.CAUTION,
    Verdict.CONTEXT_TOO_LONG: Outcome.CAUTION,
    Verdict.NO_KV_MEMORY: Outcome.FAILS,
    Verdict.WEIGHTS_DO_NOT_FIT: Outcome.FAILS,
}


def waiting_seats(plan: Plan) -> int | None:
    """`max_num_seqs` where it, not the KV cache, bounds the requests at once on one replica; None elsewhere."""
    seats = plan.resolved.max_num_seqs
    if plan.cache is None or not any(plan.specs) or plan.cache.max_concurrency <= seats:
        return None
    return seats


def requests_at_once(plan: Plan) -> float:
    """Full-length requests that run at once on one replica: what fits in the KV cache, at most `max_num_seqs`.

    The engine prints the first of the two alone.
    """
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    return min(held, plan.resolved.max_num_seqs)


def verdict_sentence(plan: Plan, t: Words) -> Sentence:
    """The verdict as a sentence: whether it fits, how many requests at once, by how much, and what it only starts
    with."""
    outcome, text = _OUTCOMES[plan.verdict], _verdict_text(plan, t)
    if plan.verdict is Verdict.CONTEXT_TOO_LONG and (plan.available_kv_bytes or 0) <= 0:
        outcome = Outcome.FAILS
    target = served(plan)
    if target is not None and plan.verdict is Verdict.FITS and any(plan.specs):
        outcome = Outcome.FITS if target.enough else Outcome.CAUTION
        text = _target_text(target, plan, t)
    if plan.verdict in (Verdict.FITS, Verdict.TIGHT) and is_above_model(plan):
        limit = count(plan.resolved.derived_max_model_len)
        outcome, text = Outcome.CAUTION, t(LABELS["verdicts"]["above-model"], limit=limit, verdict=text)
    return Sentence(outcome=outcome, text=text)


def _target_text(target: Served, plan: Plan, t: Words) -> str:
    """The target against what is served, on all replicas."""
    said = t(
        LABELS["verdicts"]["serves" if target.enough else "serves-too-few"],
        wanted=count(target.wanted),
        total=count(target.total),
        tokens=count(plan.resolved.max_model_len),
    )
    if target.replicas == 1:
        return said
    return t(
        "{verdict} ({each} on each of {replicas} replicas)",
        verdict=said,
        each=count(target.per_replica),
        replicas=count(target.replicas),
    )


def _verdict_text(plan: Plan, t: Words) -> str:
    # KV memory on one rank beyond what one request needs.
    spare = (plan.available_kv_bytes or 0) - (plan.cache.needed_bytes if plan.cache is not None else 0)
    keeps_nothing = plan.verdict is Verdict.FITS and not any(plan.specs)
    memory = plan.memory
    text = LABELS["verdicts"]["keeps-nothing" if keeps_nothing else plan.verdict]
    if memory is not None and memory.lacks_weights and memory.weights.value <= memory.budget.value:
        # The share is too small, not the budget.
        text = LABELS["verdicts"]["weights-above-share"]
    ample = None if plan.available_kv_bytes is None or plan.available_kv_bytes > 0 else any_cache(plan)
    if ample is not None and plan.verdict in (Verdict.NO_KV_MEMORY, Verdict.CONTEXT_TOO_LONG):
        text = LABELS["verdicts"]["over-budget"]
    if plan.tight_by is Tightness.START:
        return t(text, reason=_start_text(plan, t))
    said = t(
        text if plan.tight_by is None else LABELS["tight"][plan.tight_by],
        requests=requests_words(plan, t),
        spare=gib_text(max(0.0, spare)),
        missing=gib_text(plan.missing_bytes),
        needed=gib_text(ample.needed_bytes if ample is not None else 0),
        longest=count(plan.cache.longest_request_tokens if plan.cache is not None else 0),
        tokens=count(plan.resolved.max_model_len),
        blocks=count(plan.cache.num_blocks if plan.cache is not None else 0),
        seats=count(plan.resolved.max_num_seqs),
        room=gib_text(max(0.0, memory.unused.value - memory.after_pool.value) if memory is not None else 0),
        short=gib_text(max(0.0, -memory.least_room) if memory is not None else 0),
    )
    return said if plan.tight_by is None else t(text, reason=said)


def _start_text(plan: Plan, t: Words) -> str:
    """How much less memory is free than the engine asks for, and the utilization that works, or the largest share."""
    noticed = next(one for one in plan.notices if one.code == TOO_LITTLE_FREE)
    starts = starts_lower(plan)
    if starts is not None:
        shown = {
            "utilization": plain(starts.plan.resolved.gpu_memory_utilization),
            "requests": requests_words(starts.plan, t),
        }
        advice = t(LABELS["start"]["works"], **shown)
    else:
        share = float(noticed.params["free"]) / float(noticed.params["total"])
        advice = t(LABELS["start"]["lower"], utilization=plain(math.floor(100 * share) / 100))
    return t(LABELS["tight"][Tightness.START], advice=advice, **noticed.params)


def requests_words(plan: Plan, t: Words) -> str:
    """How many full-length requests run at once, and in brackets the figure that the engine prints."""
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    seats, whole = waiting_seats(plan), whole_requests(held)
    what = "seats" if seats is not None else "one" if whole == 1 else "many"
    engine = plan.resolved.engine
    if seats is None and "max_concurrency" not in engine.facts.log.figures:
        what += "_by_pool"
    requests = t(
        LABELS["requests"][what],
        limit=engine.called("max_num_seqs"),
        requests=count(whole if seats is None else seats),
        tokens=count(plan.resolved.max_model_len),
        printed=concurrency_text(held),
    )
    replicas = plan.scenario.parallel.data_parallel_size
    if replicas == 1:
        return requests
    return t("{requests} on each of {replicas} replicas", requests=requests, replicas=count(replicas))


def model_name(scenario: Scenario) -> str:
    """The model's name on every page: its id, or `config.json` where a name could be read as markup.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> model_name(scenario_from_request({"model": "Qwen/Qwen3-8B"}))
        'Qwen/Qwen3-8B'
    """
    return scenario.model if _MODEL_ID.fullmatch(scenario.model) else UNNAMED_MODEL


def scenario_line(plan: Plan, t: Words) -> tuple[str, ...]:
    """The settings after the model's name: the head, and every setting that is not the engine's default."""
    origins = fields_by_origin(plan.scenario.measured)
    least_sure = next(
        (one for one in (Origin.CARRIED, Origin.FITTED, Origin.MEASURED) if one in origins), None
    )
    measured = () if least_sure is None else (t(LABELS["measured"][least_sure]),)
    settings = (setting.text for setting in settings_in_force(plan.scenario, t))
    return (*scenario_head(plan, t), *settings, *measured)


def scenario_head(plan: Plan, t: Words) -> tuple[str, ...]:
    """Card and count, replicas, length, utilization, KV dtype, engine."""
    parallel, resolved = plan.scenario.parallel, plan.resolved
    cards = parallel.ranks_per_replica
    return (
        f"{t.card(plan.accelerator.name)} × {cards}",
        *((t("{count} replicas", count=str(parallel.data_parallel_size)),) if parallel.data_parallel_size > 1 else ()),
        t("{tokens} tokens", tokens=count(resolved.max_model_len)),
        t("utilization {share}", share=plain(resolved.gpu_memory_utilization)),
        t("KV {dtype}", dtype=resolved.kv_cache_dtype),
        f"{resolved.engine.name} {resolved.engine_version}",
    )  # fmt: skip


def refused_line(scenario: Scenario, t: Words) -> tuple[str, ...]:
    """The settings of a scenario without a plan: card and count, length, engine, as far as given."""
    card, tokens, version = scenario.accelerator, scenario.max_model_len, scenario.engine_version
    return (
        *((f"{t.card(card.name)} × {scenario.parallel.ranks_per_replica}",) if card is not None else ()),
        *((t("{tokens} tokens", tokens=count(tokens)),) if tokens is not None and tokens > 0 else ()),
        f"{scenario.engine} {version}" if version else f"{scenario.engine}",
    )


def cards(plan: Plan, curve: ConcurrencyCurve | None, t: Words) -> tuple[Card, ...]:
    """The four cards: concurrency, KV cache tokens, KV per token, longest single request."""
    cache, resolved = plan.cache, plan.resolved
    pool = cache if cache is not None and cache.num_blocks > 0 else None
    ample = any_cache(plan)
    figures = pool.figures if pool is not None else None
    per_token = ample.figures.bytes_per_token if ample is not None else None
    stops = t("the engine may stop at start") if plan.tight_by else t("the engine stops at start")
    requests, note, missing = DASH, stops, t("no memory is left")
    if pool is not None and pool.fits:
        total = whole_requests(requests_at_once(plan)) * plan.scenario.parallel.data_parallel_size
        requests = _requests_text(plan, curve)
        note = _with_total(_concurrency_note(plan, curve, t), total, plan, t)
    if not any(plan.specs):
        requests, note = DASH, t("nothing is kept of a request")
    in_all = t("per GPU")
    if plan.scenario.parallel.ranks_per_replica > 1:
        in_all = t("per GPU, {size} in all", size=kib_text(bytes_per_token_in_all(plan).value))
    tokens = longest = DASH
    stored, ranks = missing, plan.scenario.parallel.ranks_per_replica
    if pool is not None:
        tokens = count(pool.tokens)
        stored = _with_total(
            _scope(plan, t("on {gpus} {gpus:GPU|GPUs}", gpus=count(ranks)), t),
            pool.tokens * plan.scenario.parallel.data_parallel_size,
            plan,
            t,
        )
    if cache is not None and cache.longest_request_tokens:
        longest = count(cache.longest_request_tokens)
    limit = t("model limit {tokens}", tokens=count(resolved.derived_max_model_len))
    each = kib_text(per_token.value) if per_token is not None and per_token.value else DASH
    ran, kept, largest = (
        (figures.concurrency, figures.tokens, figures.longest) if figures else (None, None, None)
    )
    rows = (
        ("requests", t("Requests at once"), requests, note, ran),
        ("tokens", t("KV cache tokens"), tokens, stored, kept),
        ("per-token", t("KV per token"), each, in_all, per_token),
        ("longest", t("Longest request"), longest, limit if pool is not None else missing, largest),
    )
    return tuple(
        Card(label=label, value=value, note=said, help=_help(name, quantity, plan, t))
        for name, label, value, said, quantity in rows
    )


def _ends(plan: Plan, curve: ConcurrencyCurve | None) -> tuple[float, float] | None:
    """The 80 % interval of the requests at once, where the KV cache bounds them; None where nothing is unsure."""
    now = plan.resolved.max_model_len
    if curve is None or now not in curve.lengths or waiting_seats(plan) is not None:
        return None
    index = curve.lengths.index(now)
    low, high = curve.low[index], curve.high[index]
    return None if math.isclose(low, high, rel_tol=5e-3) else (low, high)


def low_end_line(plan: Plan, curve: ConcurrencyCurve, t: Words) -> str:
    """What is served at the lower end of the interval, where that is less than the target and the estimate is not."""
    target, ends = served(plan), _ends(plan, curve)
    if target is None or ends is None or not target.enough:
        return ""
    low = min(whole_requests(ends[0]), plan.resolved.max_num_seqs) * target.replicas
    if low >= target.wanted:
        return ""
    return t(
        "It is close: at the lower end of its 80 % interval it serves {low} of {wanted}.",
        low=count(low),
        wanted=count(target.wanted),
    )


def _requests_text(plan: Plan, curve: ConcurrencyCurve | None) -> str:
    """Requests at once, without a fraction that the interval is wider than."""
    requests, ends = requests_at_once(plan), _ends(plan, curve)
    is_rough = ends is not None and ends[1] - ends[0] > 1
    return rough_requests(requests) if is_rough else concurrency_text(requests)


def _concurrency_note(plan: Plan, curve: ConcurrencyCurve | None, t: Words) -> str:
    scope = _scope(plan, t("of {tokens} tokens", tokens=count(plan.resolved.max_model_len)), t)
    if waiting_seats(plan) is not None and plan.cache is not None:
        held = concurrency_text(plan.cache.max_concurrency)
        return t("{scope}, by max_num_seqs; the KV cache has room for {held}", scope=scope, held=held)
    ends = _ends(plan, curve)
    if ends is None:
        return scope
    low, high = map(rough_requests if ends[1] - ends[0] > 1 else concurrency_text, ends)
    return t("{scope}, {low}–{high}", scope=scope, low=low, high=high)


def _scope(plan: Plan, alone: str, t: Words) -> str:
    """That a figure is of one replica, where there are several; else `alone`."""
    return t("per replica") if plan.scenario.parallel.data_parallel_size > 1 else alone


def _with_total(note: str, total: int, plan: Plan, t: Words) -> str:
    """A note on one replica, and the sum of all where there are several."""
    if plan.scenario.parallel.data_parallel_size == 1:
        return note
    return t("{note}; {total} in all", note=note, total=count(total))


def _help(card: str, quantity: Quantity | None, plan: Plan, t: Words) -> str:
    meaning = t(LABELS["card-help"][card], seats=count(plan.resolved.max_num_seqs))
    if quantity is None or not quantity.formula:
        return meaning
    return f"{meaning}\n\n`{quantity.formula}`\n\n`= {quantity.substituted}`"


_COUNTED: Final = ("max_model_len", "max_num_batched_tokens", "max_cudagraph_capture_size")


def fix_label(fix: Fix, t: Words, *, is_of_traffic: bool = False) -> str:
    """The label of the button of a fix; `is_of_traffic`: its length is what the known requests need."""
    field = "traffic-length" if is_of_traffic else fix.field
    if field == "data_parallel_size" and fix.plan.architecture.moe is not None:
        field = "shared-experts"
    if field == "max_num_seqs" and fix.scenario.wanted == fix.value:
        field = "more-sequences"
    return t(LABELS["fixes"][field], value=_new_value(fix, t))


def accepted_label(accepted: Fix, t: Words) -> str:
    """The label of a change after which the engine accepts a deployment."""
    labels = LABELS["accepted"]
    if accepted.field == "quantization" and accepted.value is not None:
        return t(labels["other-checkpoint"], value=f"{accepted.value}")
    return t(labels.get(accepted.field, labels["other"]), value=_new_value(accepted, t), field=accepted.field)


def _new_value(fix: Fix, t: Words) -> str:
    if fix.field == "accelerator":
        return t.card(fix.plan.accelerator.name)
    return count(float(fix.value or 0)) if fix.field in _COUNTED else f"{fix.value}"


def pair_label(pair: FixPair, t: Words) -> str:
    """The label of the button of a pair of fixes."""
    field, value = pair.first
    first = fix_label(replace(pair.second, field=field, value=value), t)
    return t("{first} + {second}", first=first, second=fix_label(pair.second, t))


def fix_text(label: str, fix: Fix, t: Words) -> str:
    """The words of a fix's button: the change, and its result."""
    return t("{change}: {result}", change=label, result=fix_result(fix, t))


def fix_result(fix: Fix, t: Words) -> str:
    """The result of a fix in words."""
    target = fix.serves
    if target is not None and any(fix.plan.specs):
        gpus = fix.scenario.parallel.ranks
        served_text = t(
            "serves {total} on {gpus} {gpus:GPU|GPUs}", total=count(target.total), gpus=count(gpus)
        )
        return served_text if fix.verdict is Verdict.FITS else t("tight, {requests}", requests=served_text)
    if fix.plan.cache is None:
        return ""
    if not any(fix.plan.specs):
        return t("fits")
    requests = count(whole_requests(requests_at_once(fix.plan)))
    if fix.verdict is Verdict.TIGHT:
        return t("tight, serves {requests}", requests=requests)
    return t("serves {requests}", requests=requests)


def state_mode_text(plan: Plan, t: Words) -> str:
    """One sentence on the Mamba cache mode that is in force; "" for a model without recurrent states."""
    spec = next((spec for specs in plan.specs for spec in specs if spec.kind is CacheKind.MAMBA), None)
    if spec is None:
        return ""
    return t(LABELS["state-modes"][plan.resolved.mamba_cache_mode], size=count(spec.block_size))
