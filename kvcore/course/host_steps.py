"""The step of the lesson on the host: what a tier of its memory keeps of finished prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from kvcore.base.numbers import count, fine_gib_text, gib_text
from kvcore.base.quantity import Grade, Scope, Unit, explained, given
from kvcore.base.units import GIB, KIB
from kvcore.course.equation import equations
from kvcore.course.lesson import Content, Lesson, StepName
from kvcore.explain.numbers import any_cache
from kvcore.host.moved import moved_seconds, pcie_bytes_per_second

TIER_GIB: Final = 200
"""Size of the tier that the lesson computes with."""
GIGABYTE: Final = 10**9
USUAL_TOKEN: Final = 128 * KIB
"""Bytes of a token where a model's cache does not grow with the length."""


def tier_content(lesson: Lesson) -> Content:
    """Tokens of a tier, over all ranks of an engine."""
    base, say = lesson.plan, lesson.say
    cache, ranks = any_cache(base), base.scenario.parallel.ranks_per_replica
    own = cache.bytes_per_token if cache is not None else 0
    token = round(own * ranks) or USUAL_TOKEN
    size = TIER_GIB * GIB
    content = lesson.content(
        StepName.TIER, unit=say("tokens"), size=gib_text(size), token=fine_gib_text(token), ranks=count(ranks)
    )
    tokens = explained(
        "tier_tokens",
        held_tokens,
        given("tier_size", size, Unit.BYTES),
        given("token_in_all", token, Unit.BYTES),
        unit=Unit.TOKENS,
        scope=Scope.PER_REPLICA,
        grade=Grade.DERIVED,
        source="vllm/v1/kv_offload/cpu/spec.py:CPUOffloadingSpec (0.33.0)",
    )
    slips = [lesson.slip(float(TIER_GIB * GIGABYTE // token), "tier-slip-decimal")]
    if ranks > 1:
        slips.append(lesson.slip(float(size * ranks // token), "tier-slip-one"))
    return replace(
        content.answered(answer=tokens.value, slips=tuple(slips)),
        points=(say("tier-replicas"), say("tier-place"), say("tier-copies")),
        equations=equations(lesson.t, tokens),
        remarks=tuple(_tier_remarks(lesson)),
    )


def held_tokens(tier_size: int, token_in_all: int) -> int:
    """Tokens of a tier: its bytes by those of a token over all ranks."""
    return tier_size // token_in_all


def _tier_remarks(lesson: Lesson) -> Iterator[str]:
    plan = lesson.plan
    cache = any_cache(plan)
    if cache is not None and cache.needed_bytes:
        seconds = moved_seconds(cache.needed_bytes, pcie_bytes_per_second(plan.accelerator))
        yield lesson.say("tier-read", size=gib_text(cache.needed_bytes), seconds=f"{seconds:.2g}")
    host = plan.host
    if host is not None and host.bytes_per_engine:
        yield lesson.say("tier-here", size=gib_text(host.bytes_per_engine))
