"""The bars next to that of one GPU: the host's memory of a server, and all engines of a card."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kvcore.base.numbers import count, gib_text, size_text
from kvcore.base.parts import FRAMEWORK, KV_CACHE, SYSTEM, UNUSED, WEIGHTS
from kvcore.base.units import GIB, gib
from kvcore.base.words import Words, msg
from kvcore.charts.memory_bar import MARGIN
from kvcore.charts.stack import CAPACITY, Bar, Note, Piece, Stack
from kvcore.explain.numbers import HOST_LABELS
from kvcore.host.moved import moved_seconds, pcie_bytes_per_second
from kvcore.planning import Plan

LOOK_OF: Final = {
    "host_tier": KV_CACHE.name,
    "host_buffers": "unaccounted",
    "host_weights": WEIGHTS.name,
    "host_tables": "cuda_graphs",
    "host_workers": FRAMEWORK.name,
    "host_servers": SYSTEM.name,
    "host_items": "activations",
    "host_asleep": "after_pool",
}
"""The class of the colour by the quantity."""
FREE: Final = msg("Free")
LOOKS: Final = ("weights", "activations", "framework", "cuda_graphs", "unaccounted", "kv_cache", "system")
"""Classes of the engines of a card, one after the other."""


class HostPart(Struct, frozen=True, kw_only=True):
    """One part of the host's memory, of all replicas, in bytes."""

    label: str
    look: str
    size_bytes: float
    bounds: tuple[float, float]


def host_parts(plan: Plan, t: Words) -> tuple[HostPart, ...]:
    """The parts from left to right; what is free comes last, where the machine's memory is stated."""
    host = plan.host
    if host is None:
        return ()
    of_replicas = [(part, host.replicas) for part in host.parts]
    found = []
    for part, times in (*of_replicas, *((part, 1) for part in host.processes)):
        label, look = HOST_LABELS[part.name], LOOK_OF[part.name]
        low, high = (end * times for end in part.bounds)
        if part.value:
            found.append(
                HostPart(label=t(label), look=look, size_bytes=part.value * times, bounds=(low, high))
            )
    total = plan.scenario.node_memory_gib
    left = 0.0 if total is None else total * GIB - sum(part.size_bytes for part in found)
    if left > 0:
        found.append(HostPart(label=t(FREE), look=UNUSED.name, size_bytes=left, bounds=(left, left)))
    return tuple(found)


def host_bar(plan: Plan, t: Words) -> Stack | None:
    """The host's memory as a stacked bar; None where nothing asks for any of it."""
    parts = host_parts(plan, t)
    if not parts or plan.host is None:
        return None
    pieces, position = [], 0.0
    for part in parts:
        size, text = gib(part.size_bytes), gib_text(part.size_bytes)
        pieces.append(
            Piece(
                look=f"kv-{part.look}",
                start=position,
                size=size,
                said=(part.label, text),
                title=f"{part.label} {text}",
            )
        )
        position += size
    total = plan.scenario.node_memory_gib
    end = max(position, total or 0.0)
    notes, across = [], []
    if total is not None:
        notes.append(Note(at=total, text=t("machine {size}", size=gib_text(total * GIB))))
        across.append(Piece(look=CAPACITY, start=total, size=0.0))
    bar = Bar(pieces=tuple(pieces), across=tuple(across))
    return Stack(bars=(bar,), end=end * MARGIN, axis=t("GiB of the machine's memory"), notes=tuple(notes))


def host_sentences(plan: Plan, t: Words) -> tuple[str, ...]:
    """What the tier holds and how fast it is at the most, what to write down, and what lies in /dev/shm."""
    host, cache = plan.host, plan.cache
    if host is None:
        return ()
    said = []
    tier, ranks = host.tier, plan.scenario.parallel.ranks_per_replica
    if tier is not None and tier.tokens and cache is not None:
        held = {"tokens": count(tier.tokens), "size": size_text(tier.bytes_per_token)}
        said.append(
            t("The tier holds {tokens} tokens of each engine, {size} a token over all ranks.", **held)
        )
        if tier.most_tokens > tier.tokens:
            said.append(
                t(
                    "That is with states and windows of every block; up to {tokens} tokens where it keeps few of them.",
                    tokens=count(tier.most_tokens),
                )
            )
        lanes = pcie_bytes_per_second(plan.accelerator)
        fill = moved_seconds(tier.taken.value / ranks, lanes)
        read = moved_seconds(cache.needed_bytes, lanes)
        said.append(
            t(
                "Over PCIe at its limit it takes {fill} s to fill, and {read} s to read a request of full length back.",
                fill=_seconds(fill),
                read=_seconds(read),
            )
        )
    low, high = host.limit_bounds
    said.append(
        t(
            "Write down a memory limit of {high} ({low} at the least) and a /dev/shm of {shm}.",
            high=gib_text(high),
            low=gib_text(low),
            shm=gib_text(host.shm_bytes),
        )
    )
    cached = t(
        "While weights are read, the page cache holds up to {size} more, which the host takes back.",
        size=gib_text(host.cached.value),
    )
    return (*said, cached)


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def engines_bar(plan: Plan, t: Words) -> Stack | None:
    """All engines of one card in the order of start; None where it is alone."""
    memory = plan.memory
    if memory is None or not plan.engines:
        return None
    pieces, position = [], 0.0
    for place, share in enumerate(plan.engines):
        size = gib(share.taken_bytes)
        name = t("Other processes") if share.name.endswith("GiB") else share.name.rpartition("/")[2]
        text = gib_text(share.taken_bytes) if size else t("does not start")
        look = f"kv-{LOOKS[place % len(LOOKS)]}"
        pieces.append(Piece(look=look, start=position, size=size, said=(name, text), title=f"{name} {text}"))
        position += size
    total = gib(memory.total.value)
    if position < total:
        left = gib_text((total - position) * GIB)
        piece = Piece(look=f"kv-{UNUSED.name}", start=position, size=total - position, said=(t(FREE), left))
        pieces.append(piece)
    note = Note(at=total, text=t("card {size}", size=gib_text(memory.total.value)))
    line = Piece(look=CAPACITY, start=total, size=0.0)
    bar = Bar(pieces=tuple(pieces), across=(line,))
    end = max(position, total) * MARGIN
    return Stack(
        bars=(bar,), end=end, axis=t("GiB of one {card}", card=t.card(plan.accelerator.name)), notes=(note,)
    )
