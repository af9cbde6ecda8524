"""Predicted against measured in words: labels of a log's figures, one row a part, one sentence of advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvcore.evidence.calibration import Comparison, FigureComparison, PartComparison
from kvcore.evidence.log.figures import Reading
from kvcore.scenario import Origin
from kvcore.texts.words import DASH, Words, concurrency_text, count, msg

PART_LABELS: Final[Mapping[str, str]] = {
    "system": msg("System"),
    "framework": msg("Framework"),
    "weights": msg("Weights"),
    "activations": msg("Activations"),
    "cuda_graphs": msg("CUDA graphs"),
    "available_kv": msg("Available for the KV cache"),
}

ORIGIN_LABELS: Final[Mapping[Origin, str]] = {
    Origin.MEASURED: msg("Measured: {parts}"),
    Origin.FITTED: msg("Fitted to your log: {parts}"),
    Origin.CARRIED: msg("Carried over from another setting: {parts}"),
}

FIGURE_LABELS: Final[Mapping[str, str]] = {
    "weights_gib": msg("Weights"),
    "profiled_weights_gib": msg("Weights, as profiled"),
    "non_torch_gib": msg("Framework, non-torch memory"),
    "peak_activation_gib": msg("Activation peak"),
    "summary_peak_gib": msg("Activation peak of the summary"),
    "consumed_gib": msg("Weights and non-torch memory"),
    "non_kv_gib": msg("All but the KV cache"),
    "cuda_graph_gib": msg("CUDA graphs"),
    "cuda_graph_estimate_gib": msg("CUDA graphs, estimated by the engine"),
    "available_kv_gib": msg("Available for the KV cache"),
    "total_gib": msg("Memory of the card"),
    "free_gib": msg("Free at the start"),
    "used_gib": msg("Taken at the start"),
    "requested_gib": msg("Budget"),
    "peak_torch_gib": msg("Torch's peak, weights included"),
    "peak_used_gib": msg("Peak in use (MindSpore)"),
    "kv_tokens": msg("KV cache tokens"),
    "max_concurrency": msg("Requests at once"),
    "concurrency_for_len": msg("Length that the requests are counted for"),
    "num_gpu_blocks": msg("Blocks"),
    "block_size": msg("Block size"),
    "mamba_padding_percent": msg("Padding of state pages"),
    "auto_fit_from": msg("Requested length"),
    "auto_fit_len": msg("Length after automatic fitting"),
    "utilization": msg("GPU memory utilization"),
    "batched_tokens": msg("Tokens of one step"),
    "context_parallel": msg("Context parallel size"),
    "model_len": msg("Context length"),
}

BORROWED_LABELS: Final[Mapping[str, str]] = {
    "model": msg("model"),
    "accelerator": msg("accelerator"),
    "engine": msg("engine"),
    "engine_version": msg("engine version"),
    "flags": msg("flags"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRow:
    """One part, ready to be shown."""

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
    half = "" if part.interval_gib is None else f"± {(part.interval_gib[1] - part.interval_gib[0]) / 2:.2f}"
    difference = part.difference_gib
    return PartRow(
        label=t(PART_LABELS[part.part]),
        predicted=f"{part.predicted_gib:.2f}",
        interval=half,
        measured=DASH if part.measured_gib is None else f"{part.measured_gib:.2f}",
        difference=DASH if difference is None else signed_gib(difference),
        judgement=_judgement(part, t),
        is_outside=part.is_inside is False,
        causes=tuple(t.error(cause) for cause in part.causes),
    )


def _judgement(part: PartComparison, t: Words) -> str:
    if part.is_inside is None:
        return t("not in the log")
    if part.interval_gib is None:
        return t("the same") if part.is_inside else t("differs")
    return t("inside") if part.is_inside else t("outside")


def signed_gib(difference_gib: float) -> str:
    """A difference with its sign, a real minus.

    Example:
        >>> signed_gib(-0.306), signed_gib(0.5), signed_gib(0.001)
        ('−0.31', '+0.50', '0.00')
    """
    text = f"{abs(difference_gib):.2f}"
    if text == "0.00":
        return text
    return ("+" if difference_gib > 0 else "\N{MINUS SIGN}") + text


def figure_sentences(comparison: Comparison, t: Words) -> tuple[str, ...]:
    """Tokens and concurrency: planned, printed, and planned again from the KV memory that was measured."""
    lines = []
    for figure in comparison.figures:
        show = count if figure.figure == "kv_tokens" else concurrency_text
        params = {
            "figure": t(FIGURE_LABELS[figure.figure]),
            "predicted": DASH if figure.predicted is None else show(figure.predicted),
            "printed": show(figure.measured),
        }
        line = t("{figure}: predicted {predicted}, printed {printed}", **params)
        if figure.from_measured_kv is not None:
            line += t("; computed from the KV memory of the log {again}", again=show(figure.from_measured_kv))
        lines.append(line)
    return tuple(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """What a start had for requests, against the prediction."""

    text: str
    is_lost: bool
    """Whether it had less than the estimate's error allows for."""


def headline(comparison: Comparison, t: Words, *, is_same_model: bool = True) -> Headline | None:
    """KV memory, tokens and requests of a start, each with what was gained or lost; None where the log gives none.

    Where the plan is of another model, the figures stand alone.
    """
    kv = next((part for part in comparison.measured_parts if part.part == "available_kv"), None)
    figures = [_figure(figure, t, is_compared=is_same_model) for figure in comparison.figures]
    if kv is not None and kv.measured_gib is not None:
        figures.insert(0, t("{size} GiB of KV memory", size=f"{kv.measured_gib:.2f}"))
    if not figures:
        return None
    said = " · ".join(figures)
    difference = kv.difference_gib if kv is not None and is_same_model else None
    if kv is None or difference is None:
        return Headline(text=t("The engine printed {figures}", figures=said), is_lost=False)
    size = f"{abs(difference):.2f}"
    if signed_gib(difference) == "0.00":
        return Headline(text=t("As much KV memory as predicted: {figures}", figures=said), is_lost=False)
    if difference > 0:
        text = t("{size} GiB more KV memory than predicted: {figures}", size=size, figures=said)
        return Headline(text=text, is_lost=False)
    text = t("{size} GiB less KV memory than predicted: {figures}", size=size, figures=said)
    return Headline(text=text, is_lost=kv.is_inside is False)


def _figure(figure: FigureComparison, t: Words, *, is_compared: bool) -> str:
    """A figure as printed, with what it is more or less than predicted."""
    show = count if figure.figure == "kv_tokens" else concurrency_text
    printed = show(figure.measured)
    if is_compared and figure.predicted is not None:
        more = figure.measured - figure.predicted
        sign = "" if show(abs(more)) == show(0.0) else "+" if more > 0 else "\N{MINUS SIGN}"
        printed += f" ({sign}{show(abs(more))})"
    if figure.figure == "kv_tokens":
        return t("{number} tokens", number=printed)
    return t("{number} requests of the full length at once", number=printed)


def advice(comparison: Comparison, t: Words) -> str:
    """One sentence: what to do about the largest difference."""
    if not comparison.measured_parts:
        return t(
            "No part of the memory is in this log: send it from its first line on, at debug level if you can."
        )
    largest = comparison.largest
    if largest is None:
        return t("Every measured part is as predicted: the plan is right for this machine.")
    return t(
        "{part} is {difference} GiB off the prediction. Next: {step}. Or plan with these measurements.",
        part=t(PART_LABELS[largest.part]),
        difference=signed_gib(largest.difference_gib or 0.0),
        step=t.next_step(largest.causes[0]).rstrip("。."),
    )


def reading_text(reading: Reading) -> str:
    """A figure with its unit.

    Example:
        >>> reading_text(Reading(figure="weights_gib", value=15.2683, unit="GiB", line_number=1, line=""))
        '15.2683 GiB'
        >>> reading_text(Reading(figure="kv_tokens", value=94784.0, unit="tokens", line_number=1, line=""))
        '94,784 tokens'
    """
    number = f"{reading.value:,.0f}" if reading.value.is_integer() else f"{reading.value:,.6g}"
    return f"{number} {reading.unit}".strip()
