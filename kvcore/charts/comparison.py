"""Comparisons in words and figures: a start against its prediction, and one setting at several values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from kvcore.advice.roofline import decode_bound
from kvcore.advice.target import served
from kvcore.advice.vary import Variant, Varied
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import (
    DASH,
    MINUS,
    concurrency_text,
    count,
    gib_text,
    plain,
    real_minus,
    signed_gib,
    significant,
    spread_text,
    two_decimals,
    whole_requests,
)
from kvcore.base.parts import BUDGETED, GIVEN, GIVEN_LABELS, KV_CACHE, PARTS, Part
from kvcore.base.units import GIB, gib
from kvcore.base.words import Words, listed
from kvcore.charts.memory_bar import MARGIN, axis_title, part_piece
from kvcore.charts.stack import CAPACITY, Bar, Note, Piece, Stack
from kvcore.charts.summary import waiting_seats
from kvcore.evidence.calibration import Comparison, FigureComparison, PartComparison
from kvcore.evidence.log.figures import Reading
from kvcore.planning import Plan, Verdict
from kvcore.scenario import Parallel, SpeculativeConfig
from kvcore.texts import LABELS

LEAST_GROWTH_GIB: Final = 0.05
"""Smallest growth of a part that is named as a reason."""
DECIDING_SHARE: Final = 0.1
"""Share of the largest reason below which another one is not named."""

ORIGIN_LABELS: Final = LABELS["origins"]

FIGURE_LABELS: Final = {
    **{part.field: GIVEN_LABELS[part.estimate] for part in GIVEN},
    **LABELS["log-figures"],
}

BORROWED_LABELS: Final = LABELS["borrowed"]


class PartRow(Struct, frozen=True, kw_only=True):
    """One compared part, as text."""

    label: str
    predicted: str
    interval: str
    measured: str
    difference: str
    judgement: str
    is_outside: bool
    causes: tuple[str, ...]


def part_rows(comparison: Comparison, t: Words) -> tuple[PartRow, ...]:
    """The parts in the order of the memory bar, in GiB with two decimals as the engine prints them."""
    return tuple(_part_row(part, t) for part in comparison.parts)


def _part_row(part: PartComparison, t: Words) -> PartRow:
    spread = ""
    if part.interval_gib is not None:
        low, high = part.interval_gib
        spread = spread_text((part.predicted_gib - low) * GIB, (high - part.predicted_gib) * GIB)
    return PartRow(
        label=t(GIVEN_LABELS[part.part]),
        predicted=two_decimals(part.predicted_gib),
        interval=spread,
        measured=DASH if part.measured_gib is None else two_decimals(part.measured_gib),
        difference=DASH if part.difference_gib is None else signed_gib(part.difference_gib),
        judgement=_judgement(part, t),
        is_outside=part.is_inside is False,
        causes=tuple(t.error(cause) for cause in part.causes),
    )


def _judgement(part: PartComparison, t: Words) -> str:
    if part.is_inside is None:
        return t("not in the log")
    same, other = (t("the same"), t("differs")) if part.interval_gib is None else (t("inside"), t("outside"))
    return same if part.is_inside else other


def figure_sentences(comparison: Comparison, t: Words) -> tuple[str, ...]:
    """Sentences on tokens and concurrency: predicted, printed, and computed again from the measured KV memory."""
    lines = []
    for figure in comparison.figures:
        show = count if figure.figure == "kv_tokens" else concurrency_text
        line = t(
            "{figure}: predicted {predicted}, printed {printed}",
            figure=t(FIGURE_LABELS[figure.figure]),
            predicted=DASH if figure.predicted is None else show(figure.predicted),
            printed=show(figure.measured),
        )
        if figure.from_measured_kv is not None:
            line += t("; computed from the KV memory of the log {again}", again=show(figure.from_measured_kv))
        lines.append(line)
    return tuple(lines)


class Headline(Struct, frozen=True, kw_only=True):
    """The memory that a start had for requests, against the prediction."""

    text: str
    is_lost: bool
    """Whether it had less than the 80 % interval allows."""


def headline(comparison: Comparison, t: Words, *, is_same_model: bool = True) -> Headline | None:
    """KV memory, tokens and requests of a start, each with its difference from the prediction; None where the log
    gives none.

    Where the plan is of another model, the figures stand alone.
    """
    kv = next((part for part in comparison.measured_parts if part.part == KV_CACHE.estimate), None)
    figures = [_figure(figure, t, is_compared=is_same_model) for figure in comparison.figures]
    if kv is not None and kv.measured_gib is not None:
        figures.insert(0, t("{size} GiB of KV memory", size=two_decimals(kv.measured_gib)))
    if not figures:
        return None
    difference = kv.difference_gib if kv is not None and is_same_model else None
    what = "printed"
    if difference is not None:
        what = "same" if signed_gib(difference) == "0.00" else "more" if difference > 0 else "less"
    text = t(
        LABELS["headlines"][what], size=two_decimals(abs(difference or 0.0)), figures=" · ".join(figures)
    )
    return Headline(text=text, is_lost=what == "less" and kv is not None and kv.is_inside is False)


def _figure(figure: FigureComparison, t: Words, *, is_compared: bool) -> str:
    """A printed figure with its difference from the prediction."""
    show = count if figure.figure == "kv_tokens" else concurrency_text
    printed = show(figure.measured)
    if is_compared and figure.predicted is not None:
        more = figure.measured - figure.predicted
        sign = "" if show(abs(more)) == show(0.0) else "+" if more > 0 else MINUS
        printed += f" ({sign}{show(abs(more))})"
    if figure.figure == "kv_tokens":
        return t("{number} tokens", number=printed)
    return t("{number} {number:request|requests} of the full length at once", number=printed)


def advice(comparison: Comparison, t: Words) -> str:
    """Advice on the largest difference; without one, how much of the plan the log confirms."""
    texts, largest = LABELS["log-advice"], comparison.largest
    if not comparison.measured_parts:
        return t(texts["nothing"])
    if largest is None:
        missing = [t(GIVEN_LABELS[part.part]) for part in comparison.parts if part.measured_gib is None]
        right = "right" if comparison.names_card else "borrowed-card"
        if missing:
            right = "right-so-far" if comparison.names_card else "borrowed-card-so-far"
        return t(texts[right], missing=listed(t, missing))
    difference = largest.difference_gib or 0.0
    return t(
        texts["more" if difference > 0 else "less"],
        part=t(GIVEN_LABELS[largest.part]),
        size=two_decimals(abs(difference)),
        step=t.next_step(largest.causes[0]).rstrip("。."),
    )


def reading_text(reading: Reading) -> str:
    """A figure with its unit.

    Example:
        >>> reading_text(Reading(figure="weights_gib", value=15.2683, unit="GiB", line_number=1, line=""))
        '15.2683 GiB'
        >>> reading_text(Reading(figure="available_kv_gib", value=-52.8, unit="GiB", line_number=1, line=""))
        '−52.8 GiB'
        >>> reading_text(Reading(figure="kv_tokens", value=94784.0, unit="tokens", line_number=1, line=""))
        '94,784 tokens'
    """
    return f"{real_minus(significant(reading.value, 6))} {reading.unit}".strip()


def comparison_bar(comparison: Comparison, planned: Plan, t: Words) -> Stack:
    """Predicted above measured in the same colours; a line marks the card's total.

    A part that the log does not give stands in the lower bar as predicted, faint.
    """
    known = _by_estimate(comparison)
    rows: dict[str, list[Piece]] = {"predicted": [], "measured": []}
    ends = dict.fromkeys(rows, 0.0)
    for part in compared_parts(comparison):
        compared = known[part.estimate]
        sizes = {"predicted": compared.predicted_gib, "measured": compared.measured_gib}
        for row, pieces in rows.items():
            size = sizes[row]
            width = max(0.0, compared.predicted_gib if size is None else size)
            if width > 0:
                pieces.append(_part_piece(part, ends[row], width, size is None, t))
            ends[row] += width
    total = gib(planned.memory.total.value) if planned.memory is not None else max(ends.values())
    line = Piece(look=CAPACITY, start=total, size=0.0)
    names = {"predicted": t("Predicted"), "measured": t("Measured")}
    return Stack(
        bars=tuple(
            Bar(name=names[row], pieces=tuple(pieces), across=(line,)) for row, pieces in rows.items()
        ),
        end=max(total, *ends.values()) * MARGIN,
        axis=axis_title(planned, t),
        notes=(Note(at=total, text=t("card {size}", size=gib_text(total * GIB))),),
    )


def compared_parts(comparison: Comparison) -> tuple[Part, ...]:
    """The parts in both bars, in their order."""
    known = _by_estimate(comparison)
    return tuple(part for part in PARTS if part.estimate in known)


def _by_estimate(comparison: Comparison) -> dict[str, PartComparison]:
    return {part.part: part for part in comparison.parts}


def _part_piece(part: Part, start: float, width: float, is_faint: bool, t: Words) -> Piece:
    label, size = t(part.label), gib_text(width * GIB)
    if not is_faint:
        return part_piece(part, start, width, (label, size), f"{label} {size}")
    title = t("{part} {size}, not in the log: as predicted", part=label, size=size)
    return Piece(look=f"kv-{part.name} kv-faint", start=start, size=width, title=title)


VARIED_NAMES: Final[Mapping[str, str]] = {
    Varied.TENSOR_PARALLEL: "TP",
    Varied.PIPELINE_PARALLEL: "PP",
    Varied.DATA_PARALLEL: "DP",
    **LABELS["varied"],
}


def verdict_word(variant: Variant, t: Words) -> str:
    """The verdict of a variant as a sign and a word; one that fits and misses the target has another."""
    if is_short(variant):
        return t("▲ too few")
    return t(LABELS["verdict-signs"][variant.plan.verdict]) if variant.plan is not None else t("✖ refused")


def refusal_text(error: KvPlannerError | None, t: Words) -> str:
    """The engine's reason to refuse a variant; "" where it does not."""
    return "" if error is None else t.error(error)


def position_name(varied: Varied, variant: Variant, t: Words) -> str:
    """The name of one value of a setting, for buttons and axes."""
    value = variant.value
    match varied:
        case Varied.TENSOR_PARALLEL | Varied.PIPELINE_PARALLEL | Varied.DATA_PARALLEL:
            return f"{VARIED_NAMES[varied]} {value}"
        case Varied.SPLIT if isinstance(value, Parallel):
            return split_name(value)
        case Varied.ACCELERATOR if variant.scenario.accelerator is not None:
            return t.card(variant.scenario.accelerator.name)
        case Varied.LENGTH | Varied.BATCHED_TOKENS if isinstance(value, int):
            return t("{tokens} tokens", tokens=count(value))
        case Varied.UTILIZATION if isinstance(value, float):
            return plain(value)
        case Varied.INSTANCES:
            return t("{count} per card", count=str(value))
        case Varied.BLOCK_SIZE:
            return t("default") if value is None else t("{size} tokens", size=str(value))
        case Varied.EAGER:
            return t("eager, no graphs") if value else t("with graphs")
        case Varied.SPECULATIVE if isinstance(value, SpeculativeConfig):
            return f"{value.method} × {value.num_speculative_tokens or 1}"
        case Varied.SPECULATIVE:
            return t("none")
        case _:
            return "auto" if value is None else str(value)


def split_name(parallel: Parallel) -> str:
    """The split of the GPUs: `TP 4 × DP 2, DCP 2, EP`."""
    name = f"TP {parallel.tensor_parallel_size}"
    if parallel.data_parallel_size > 1:
        name += f" × DP {parallel.data_parallel_size}"
    if parallel.pipeline_parallel_size > 1:
        name += f" × PP {parallel.pipeline_parallel_size}"
    if parallel.decode_context_parallel_size > 1:
        name += f", DCP {parallel.decode_context_parallel_size}"
    if parallel.prefill_context_parallel_size > 1:
        name += f", PCP {parallel.prefill_context_parallel_size}"
    return name + (", EP" if parallel.enable_expert_parallel else "")


def seats_note(variant: Variant, t: Words) -> str:
    """How many requests run at once where `max_num_seqs` admits fewer than fit in the KV cache; "" elsewhere."""
    seats = waiting_seats(variant.plan) if variant.plan is not None and variant.starts else None
    return (
        ""
        if seats is None or variant.plan is None
        else t(
            "{limit} runs {seats}",
            limit=variant.plan.resolved.engine.called("max_num_seqs"),
            seats=count(seats),
        )
    )


def limit_note(variant: Variant, t: Words) -> str:
    """Says that `max_num_seqs`, not the KV cache, limits the requests; "" where it does not."""
    return t("limited by max_num_seqs") if seats_note(variant, t) else ""


def first_failures(named: Sequence[tuple[str, Variant]], t: Words) -> Iterator[str]:
    """For each value that fails right after one that starts: what decides it in a rank's memory, the largest first."""
    for (before, starts), (name, fails) in pairwise(named):
        if starts.plan is None or fails.plan is None or not starts.starts or fails.starts:
            continue
        lost = _lost_bytes(starts.plan, fails.plan)
        least = max(LEAST_GROWTH_GIB * GIB, DECIDING_SHARE * max(lost.values(), default=0.0))
        deciding = sorted((part for part in lost if lost[part] >= least), key=lambda part: -lost[part])
        if not deciding:
            continue
        parts = [
            f"{t(_DECIDING[part])} {signed_gib(gib(lost[part] if part in _TAKES else -lost[part]))} GiB"
            for part in deciding
        ]
        said = t(
            "{name} fails where {before} starts, of each GPU: {parts}",
            name=name, before=before, parts=listed(t, parts),
        )  # fmt: skip
        memory = fails.plan.memory
        if memory is not None and fails.plan.verdict is Verdict.WEIGHTS_DO_NOT_FIT:
            said += t(
                "; the weights alone take {weights} of a budget of {budget}",
                weights=gib_text(memory.weights.value),
                budget=gib_text(memory.budget.value),
            )
        yield said


_TAKES: Final = (*(part.budgeted for part in BUDGETED), "request")
"""Quantities whose growth leaves less for requests; of all others, a decrease does."""
_DECIDING: Final = {**{part.budgeted: part.noun for part in BUDGETED}, **LABELS["deciding"]}


def _lost_bytes(starts: Plan, fails: Plan) -> dict[str, float]:
    """How much less the second plan has for requests than the first on its worst rank, in bytes, by quantity.

    The memory of the card stands for the budget where the card is a smaller one.
    """
    then, now = starts.memory, fails.memory
    if now is None or then is None:
        return {}
    lost = {part: getattr(now, part).value - getattr(then, part).value for part in _TAKES[:-1]}
    if now.total.value < then.total.value:
        lost["total"] = then.total.value - now.total.value
    else:
        lost["budget"] = then.budget.value - now.budget.value
    if starts.cache is not None and fails.cache is not None:
        lost["request"] = fails.cache.needed_bytes - starts.cache.needed_bytes
    return lost


def figures_of(variant: Variant) -> tuple[str, ...]:
    """The table's cells after the verdict: requests, tokens, GPUs, replicas, requests on all replicas and for each
    GPU, and the bounds of decoding."""
    cache = variant.plan.cache if variant.plan is not None else None
    starts = variant.starts
    return (
        concurrency_text(variant.max_concurrency) if starts else DASH,
        count(cache.tokens) if cache is not None and cache.num_blocks > 0 else DASH,
        str(variant.gpus),
        str(variant.replicas),
        concurrency_text(variant.all_requests) if starts else DASH,
        concurrency_text(variant.requests_per_gpu) if starts else DASH,
        *_bounds(variant),
    )


def _bounds(variant: Variant) -> tuple[str, str]:
    """The shortest time per token and the most tokens a second on all replicas, of full requests that run at once."""
    requests = whole_requests(variant.running) if variant.starts else 0
    if variant.plan is None or requests < 1:
        return DASH, DASH
    bound = decode_bound(variant.plan, requests, variant.plan.resolved.max_model_len)
    if bound is None:
        return DASH, DASH
    return (
        f"≥ {bound.seconds_per_token * 1000:.1f} ms",
        f"≤ {count(bound.tokens_per_second * variant.replicas)}",
    )


def all_gpus(variant: Variant) -> int:
    """GPUs of all replicas."""
    return variant.gpus * variant.replicas


def is_short(variant: Variant) -> bool:
    """Whether a variant starts and serves fewer requests at once than are wanted."""
    found = served(variant.plan) if variant.plan is not None else None
    return found is not None and not found.enough and variant.starts


def target_note(variant: Variant, t: Words) -> str:
    """How many of the wanted requests run at once on all replicas; "" without a target."""
    found = served(variant.plan) if variant.plan is not None else None
    if found is None:
        return ""
    if found.enough:
        return t("serves all {wanted}", wanted=count(found.wanted))
    return t("serves {total} of {wanted}", total=count(found.total), wanted=count(found.wanted))
