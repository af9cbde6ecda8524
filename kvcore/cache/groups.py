"""Groups: which layers share one block table, on every pipeline stage, as each engine version makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from kvcore.cache.packing import packed_groups
from kvcore.cache.rules import PlannerRules
from kvcore.cache.spec import FULL_KINDS, CacheKind, LayerSpec
from kvcore.errors import EngineRefusalError
from kvcore.units import ceil_div, round_up

StageSpecs = tuple[tuple[LayerSpec, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Layers of one kind, in the engine's order. `counts[stage]` layers of `specs[i]` are in `counts[i]`."""

    specs: tuple[LayerSpec, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def layers(self) -> int:
        """How many layers it has over all stages."""
        return sum(map(sum, self.counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class StageGroup:
    """One group on one stage. `members` are its distinct specs over all stages, `layers` what this stage has."""

    kind: CacheKind
    block_size: int
    layers: int
    page_size_bytes: int
    """Of one layer's block; the sum over layers where pages differ."""
    pool_bytes: int
    """What one block of this group takes on this stage."""
    members: tuple[LayerSpec, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """`whole` is the grouping over all stages; `stages` is what each stage has of it."""

    whole: tuple[StageGroup, ...]
    stages: tuple[tuple[StageGroup, ...], ...]
    bytes_per_block: tuple[int, ...]
    """What one block takes on each stage: groups overlay each other, so the widest one; 0 on an empty stage."""


@lru_cache(maxsize=4096)
def group_layers(stage_specs: StageSpecs, rules: PlannerRules, hybrid_manager: bool) -> Grouping:
    """The groups that the planner makes of the specs of a rank of each pipeline stage.

    From 0.11 over all stages, members of a bucket dealt out in turn; before, each worker on its own, in slices.

    Raises EngineRefusalError where pages or kinds cannot be brought together.

    Source: vllm/v1/core/kv_cache_utils.py:get_kv_cache_groups (0.11.0 to 0.32.0), get_kv_cache_config (0.8.5 to
    0.10.2), _project_kv_cache_groups_to_worker (0.19.0).
    """
    if rules.global_groups:
        return _grouping(stage_specs, rules, hybrid_manager)
    alone = tuple(_grouping((specs,), rules, hybrid_manager).whole for specs in stage_specs)
    return Grouping(whole=alone[0], stages=alone, bytes_per_block=tuple(_block_bytes(g, 1) for g in alone))


def _grouping(stage_specs: StageSpecs, rules: PlannerRules, hybrid_manager: bool) -> Grouping:
    merged = _merge(stage_specs, rules)
    if not merged.specs:
        return Grouping(
            whole=(), stages=tuple(() for _ in stage_specs), bytes_per_block=(0,) * len(stage_specs)
        )
    if not (hybrid_manager and rules.hybrid_manager):
        merged = _promote(merged, rules)
    alignment = 1
    if _is_one_type(merged, rules):
        split = (merged,)
    elif rules.packed_groups != "none" and (packed := packed_groups(merged.specs, merged.counts, rules)):
        split = tuple(Bucket(specs=specs, counts=counts) for specs, counts in packed)
        if rules.packed_groups == "pattern-repeats":
            alignment = math.lcm(*(spec.block_stride_alignment for spec in merged.specs))
    else:
        split = _split(_unify_pages(merged, rules), rules)
    stages = range(len(stage_specs))
    per_stage = tuple(tuple(_stage_group(group, (stage,)) for group in split) for stage in stages)
    whole = tuple(_stage_group(group, stages) for group in split)
    block_bytes = tuple(_block_bytes(groups, alignment) for groups in per_stage)
    return Grouping(whole=whole, stages=per_stage, bytes_per_block=block_bytes)


def _block_bytes(groups: tuple[StageGroup, ...], alignment: int) -> int:
    """`alignment` is that of a block that holds all layers side by side."""
    return round_up(max((group.pool_bytes for group in groups), default=0), alignment)


def _stage_group(bucket: Bucket, stages: range | tuple[int, ...]) -> StageGroup:
    pool = layers = 0
    for spec, counts in zip(bucket.specs, bucket.counts, strict=True):
        count = sum(counts[stage] for stage in stages)
        layers += count
        pool += count * _stride(spec)
    first = bucket.specs[0]
    kinds = {spec.kind for spec in bucket.specs}
    uniform = len(bucket.specs) > 1
    return StageGroup(
        kind=first.kind if len(kinds) == 1 else CacheKind.FULL_ATTENTION,
        block_size=first.block_size,
        layers=layers,
        page_size_bytes=pool if uniform else first.page_size_bytes,
        pool_bytes=pool,
        members=bucket.specs,
    )


def _stride(spec: LayerSpec) -> int:
    return round_up(spec.page_size_bytes, spec.block_stride_alignment)


def _merge(stage_specs: StageSpecs, rules: PlannerRules) -> Bucket:
    """All stages' specs, equal ones together, in the order of first occurrence."""
    stages = len(stage_specs)
    counts: dict[LayerSpec, list[int]] = {}
    for stage, specs in enumerate(stage_specs):
        for spec in specs:
            key = replace(spec, layers=1)
            if not rules.global_groups:
                key = replace(key, num_kv_heads=0, head_size=0, head_size_v=0, dtype="")
            counts.setdefault(key, [0] * stages)[stage] += spec.layers
    ordered = (
        sorted(counts, key=lambda spec: spec.kind not in FULL_KINDS) if not rules.global_groups else counts
    )
    return Bucket(specs=tuple(ordered), counts=tuple(tuple(counts[spec]) for spec in ordered))


def _promote(bucket: Bucket, rules: PlannerRules) -> Bucket:
    """Windows and chunks beside full attention, allocated as full attention."""
    if _is_one_type(bucket, rules):
        return bucket
    full_blocks = {spec.block_size for spec in bucket.specs if spec.kind in FULL_KINDS}
    if full_blocks:
        align_to = full_blocks.pop() if rules.promotion_aligns_blocks and len(full_blocks) == 1 else 0
        counts: dict[LayerSpec, tuple[int, ...]] = {}
        for spec, layers in zip(bucket.specs, bucket.counts, strict=True):
            promoted = _as_full_attention(spec, align_to)
            before = counts.get(promoted, (0,) * len(layers))
            counts[promoted] = tuple(a + b for a, b in zip(before, layers, strict=True))
        bucket = Bucket(specs=tuple(counts), counts=tuple(counts.values()))
    if not _is_one_type(bucket, rules):
        raise EngineRefusalError("cache-kinds-not-unifiable", field="disable_hybrid_kv_cache_manager")
    return bucket


def _as_full_attention(spec: LayerSpec, align_to: int) -> LayerSpec:
    if spec.kind is CacheKind.SLIDING_WINDOW_MLA:
        kind = CacheKind.MLA_ATTENTION
    elif spec.kind in (CacheKind.SLIDING_WINDOW, CacheKind.CHUNKED_LOCAL_ATTENTION):
        kind = CacheKind.FULL_ATTENTION
    else:
        return spec
    block_size = align_to or spec.block_size
    return replace(
        spec,
        kind=kind,
        block_size=block_size,
        page_size_bytes=spec.page_size_bytes * block_size // spec.block_size,
        sliding_window=0,
        attention_chunk_size=0,
    )


def _is_one_type(bucket: Bucket, rules: PlannerRules) -> bool:
    """Whether all layers always need the same number of blocks, so that one block table serves them."""
    first = bucket.specs[0]
    if len(bucket.specs) == 1:
        return True
    if not rules.uniform_type_groups:
        return False
    if len({spec.block_size for spec in bucket.specs}) > 1:
        return False
    if first.kind in FULL_KINDS:
        return all(spec.kind in FULL_KINDS for spec in bucket.specs)
    return all(
        (spec.kind, spec.sliding_window, spec.attention_chunk_size, spec.num_speculative_blocks)
        == (first.kind, first.sliding_window, first.attention_chunk_size, first.num_speculative_blocks)
        for spec in bucket.specs
    )


def _unify_pages(bucket: Bucket, rules: PlannerRules) -> Bucket:
    """Every spec with the largest page: larger blocks where that works out, padding where the version pads."""
    largest = max(spec.page_size_bytes for spec in bucket.specs)
    try:
        unified = tuple(_with_page(spec, largest, rules) for spec in bucket.specs)
    except EngineRefusalError:
        if not _may_allocate_in_full(bucket, rules):
            raise
        return _promote(bucket, rules)
    counts: dict[LayerSpec, tuple[int, ...]] = {}
    for spec, layers in zip(unified, bucket.counts, strict=True):
        before = counts.get(spec, (0,) * len(layers))
        counts[spec] = tuple(a + b for a, b in zip(before, layers, strict=True))
    return Bucket(specs=tuple(counts), counts=tuple(counts.values()))


def _with_page(spec: LayerSpec, largest: int, rules: PlannerRules) -> LayerSpec:
    page = spec.page_size_bytes
    if page == largest:
        return spec
    pads_states = rules.page_unification in ("blocks-mamba", "blocks-mamba-attention")
    if spec.kind is CacheKind.MAMBA and pads_states:
        return replace(spec, page_size_bytes=largest)
    if rules.page_unification != "none" and largest % page == 0:
        return replace(spec, block_size=spec.block_size * (largest // page), page_size_bytes=largest)
    pads_attention = rules.page_unification == "blocks-mamba-attention"
    if pads_attention and spec.kind not in (CacheKind.MLA_ATTENTION, CacheKind.MAMBA):
        return replace(spec, page_size_bytes=largest)
    raise EngineRefusalError("cache-pages-not-unifiable", field="model", pages=f"{page}, {largest}")


def _may_allocate_in_full(bucket: Bucket, rules: PlannerRules) -> bool:
    kinds = {spec.kind for spec in bucket.specs}
    return (
        rules.full_allocation_fallback
        and kinds >= {CacheKind.MLA_ATTENTION, CacheKind.SLIDING_WINDOW}
        and not kinds & {CacheKind.SLIDING_WINDOW_MLA, CacheKind.CHUNKED_LOCAL_ATTENTION}
    )


def _split(bucket: Bucket, rules: PlannerRules) -> tuple[Bucket, ...]:
    """Buckets of one spec each, cut into groups of nearly equal size."""
    if _is_one_type(bucket, rules):
        return (bucket,)
    sizes = [sum(counts) for counts in bucket.counts]
    size, largest = min(sizes), max(sizes)
    if largest < size * rules.group_size_slack:
        size = largest
    groups = []
    for spec, counts in zip(bucket.specs, bucket.counts, strict=True):
        number = ceil_div(sum(counts), size)
        for index in range(number):
            if rules.global_groups:
                members = dealt(counts, number, index)
            else:
                members = (min(size, sum(counts) - index * size),)
            groups.append(Bucket(specs=(spec,), counts=(members,)))
    return tuple(groups)


def dealt(counts: tuple[int, ...], number: int, index: int) -> tuple[int, ...]:
    """How many of each stage's layers fall to group `index` when layers are dealt out to `number` groups in turn.

    Example:
        >>> dealt((26, 26), 6, 0), dealt((26, 26), 6, 2)
        ((5, 4), (4, 5))
    """
    members = []
    begin = 0
    for count in counts:
        end = begin + count
        members.append(len(range(begin + (index - begin) % number, end, number)))
        begin = end
    return tuple(members)
