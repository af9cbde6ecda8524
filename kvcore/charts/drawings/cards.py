"""Cards: what each stores under tensor, pipeline, data, expert and context parallelism; and scores of fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from kvcore.base.numbers import count, format_bytes, two_decimals
from kvcore.base.words import Words, listed
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.engine import stage_layers
from kvcore.explain.reference import WEIGHTS, PublishedScore, published_scores
from kvcore.memory.shares import weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.planning import Plan

MOST_RANKS: Final = 16
"""Most ranks of a stage that are drawn; more are only counted."""
MOST_STAGES: Final = 16
MOST_REPLICAS: Final = 4


def cards_drawing(plan: Plan, t: Words) -> Drawing:
    """A row of cards for each pipeline stage of each replica, with what each card stores of the model."""
    parallel = plan.scenario.parallel
    replicas, stages = parallel.data_parallel_size, parallel.pipeline_parallel_size
    rows = [
        _row(plan, replica, stage, t)
        for replica in range(min(replicas, MOST_REPLICAS))
        for stage in range(min(stages, MOST_STAGES))
    ]
    if stages > MOST_STAGES:
        more = t(
            "and {count} more {count:stage like this|stages like these}", count=count(stages - MOST_STAGES)
        )
        rows.append(words_box("kv-soft", more))
    if replicas > MOST_REPLICAS:
        rows.append(
            words_box(
                "kv-soft",
                t(
                    "and {count} more {count:replica like this|replicas like these}",
                    count=count(replicas - MOST_REPLICAS),
                ),
            )
        )
    said = tuple(_said(plan, t))
    points = "".join(f"<li>{escape(text)}</li>" for text in said)
    return Drawing(
        title=t("Which card stores what"),
        html=box("kv-cards", "".join(rows)) + f"<ul>{points}</ul>",
        alternative=listed(t, (text.rstrip(".。") for text in said)),
    )


def _row(plan: Plan, replica: int, stage: int, t: Words) -> str:
    parallel = plan.scenario.parallel
    ranks = parallel.tensor_parallel_size
    layers = stage_layers(plan.architecture.num_layers, parallel, stage)
    names = [t("layers {first} to {last}", first=str(layers.start + 1), last=str(layers.stop))]
    if parallel.pipeline_parallel_size > 1:
        names.insert(0, t("stage {number}", number=str(stage + 1)))
    if parallel.data_parallel_size > 1:
        names.insert(0, t("replica {number}", number=str(replica + 1)))
    first = (replica * parallel.pipeline_parallel_size + stage) * ranks
    cards = "".join(_card(plan, replica, rank, first + rank, t) for rank in range(min(ranks, MOST_RANKS)))
    if ranks > MOST_RANKS:
        cards += words_box(
            "kv-soft",
            t("and {count} more {count:card like this|cards like these}", count=count(ranks - MOST_RANKS)),
        )
    return words_box("kv-row-name", " · ".join(names)) + box("kv-card-row", cards)


def _card(plan: Plan, replica: int, rank: int, number: int, t: Words) -> str:
    parallel, architecture = plan.scenario.parallel, plan.architecture
    ranks, heads = parallel.tensor_parallel_size, architecture.num_kv_heads
    lines = []
    if architecture.is_mla:
        lines.append(t("latent vectors, all"))
    elif heads:
        lines.append(_part(t("KV head"), t("KV heads"), heads, ranks, rank))
    if parallel.decode_context_parallel_size > 1:
        share = parallel.decode_context_parallel_size
        lines.append(t("tokens {number} of {count}", number=str(rank % share + 1), count=str(share)))
    if architecture.moe is not None:
        experts = architecture.moe.num_experts
        if parallel.enable_expert_parallel:
            holders, at = ranks * parallel.data_parallel_size, replica * ranks + rank
            lines.append(_part(t("expert"), t("experts"), experts, holders, at))
        else:
            lines.append(t("1/{ranks} of each expert", ranks=str(ranks)) if ranks > 1 else t("all experts"))
    body = "".join(words_box("kv-card-line", line) for line in lines)
    return box("kv-card", words_box("kv-card-name", t("card {number}", number=str(number))) + body)


def _part(one: str, several: str, whole: int, ranks: int, rank: int) -> str:
    """Which of `whole` things a rank stores; where there are fewer than ranks, several ranks store the same."""
    if whole < ranks:
        return f"{one} {rank * whole // ranks}"
    first, last = rank * whole // ranks, (rank + 1) * whole // ranks - 1
    return f"{one} {first}" if first == last else f"{several} {first}–{last}"


def _said(plan: Plan, t: Words) -> Iterator[str]:
    parallel, ranks = plan.scenario.parallel, plan.scenario.parallel.tensor_parallel_size
    if ranks > 1:
        yield from _weights_said(plan, ranks, t)
        if plan.architecture.is_mla:
            yield t("Latent vectors belong to no head: every card keeps all of them.")
        elif 0 < plan.architecture.num_kv_heads < ranks:
            yield t("There are fewer KV heads than cards: a head is copied.")
    if parallel.pipeline_parallel_size > 1:
        yield t("Pipeline stages have layers of their own, and the KV cache of these layers.")
    if parallel.data_parallel_size > 1:
        yield t("Replicas have all layers, a KV cache of their own and requests of their own.")
    if parallel.enable_expert_parallel and plan.architecture.moe is not None:
        yield t("Expert parallelism spreads whole experts over the cards of all replicas.")
    if parallel.decode_context_parallel_size > 1:
        yield t("Context parallelism gives the tokens of one request to the cards in turn.")
    if parallel.ranks_per_replica * parallel.data_parallel_size == 1:
        yield t("One card stores everything.")


def _weights_said(plan: Plan, ranks: int, t: Words) -> Iterator[str]:
    """The weights of a card as a sum: every line but the last is a part of it."""
    loaded = loaded_architecture(plan.architecture, plan.scenario, plan.resolved)
    shares = weight_shares(loaded, plan.quantization, plan.scenario.parallel, plan.resolved, plan.stage)
    yield t(
        "Divided over {ranks} cards: {size} of weights, {part} on each.",
        ranks=str(ranks),
        size=format_bytes(shares.divided),
        part=format_bytes(shares.divided // ranks),
    )
    yield t("Copied on each of them: {size} of weights.", size=format_bytes(shares.replicated))
    if shares.otherwise:
        yield t(
            "On each of them besides: {size} of experts, or of parts that are neither cut evenly nor copied whole.",
            size=format_bytes(shares.otherwise),
        )
    if plan.memory is None:
        return
    weights = int(plan.memory.weights.value)
    loading = weights - shares.per_rank
    if loading > 0:
        yield t(
            "Loading adds {size} on each: tables, and what kernels and drafts need.",
            size=format_bytes(loading),
        )
    elif loading < 0:
        yield t(
            "Loading takes {size} off again on each: kernels store weights in fewer bytes, or the host keeps some.",
            size=format_bytes(-loading),
        )
    yield t("Together on each card: {size} of weights.", size=format_bytes(weights))


def quality_drawing(_: Plan, t: Words) -> Drawing:
    """Every published result as bars: the format, the scores before and after, and the source."""
    rows = published_scores()
    return Drawing(
        title=t("Published scores before and after"),
        html=box("kv-scores", "".join(_score_row(row, t) for row in rows)),
        alternative=listed(t, (f"{_score_name(row, t)}: {row.before:.2f} → {row.after:.2f}" for row in rows)),
    )


def _score_name(row: PublishedScore, t: Words) -> str:
    kept = t("weights") if row.kept == WEIGHTS else t("weights and KV cache")
    return f"{row.format} ({kept}), {row.model}, {row.benchmark}"


def _score_row(row: PublishedScore, t: Words) -> str:
    kept = t("weights") if row.kept == WEIGHTS else t("weights and KV cache")
    change = ("+" if row.points >= 0 else "") + two_decimals(row.points)
    bars = box("kv-score kv-before", variables=f"--share:{row.before / 100:.4f}") + box(
        "kv-score", variables=f"--share:{row.after / 100:.4f}"
    )
    figures = f"{row.before:.2f} → <b>{row.after:.2f}</b> ({escape(change)})"
    return (
        words_box("kv-row-name", f"{row.format} · {kept}")
        + box("kv-score-bars", bars)
        + box("kv-size", figures)
        + words_box("kv-soft kv-source", f"{row.model} · {row.benchmark} · {row.source}")
    )
