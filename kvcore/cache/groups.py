"""Groups: which layers share one block table, on every pipeline stage, as each engine version makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError
from kvcore.base.kept import bounded
from kvcore.base.quantity import Quantity, Unit, explained, given
from kvcore.base.term import sum_of_products
from kvcore.base.units import ceil_div
from kvcore.cache.packing import (
    FULL_FIRST,
    BlockPages,
    Bucket,
    distributed,
    is_packed,
    packed_block_pages,
    packed_groups,
    pages_bytes,
)
from kvcore.cache.rules import PackedGroups, PageUnification, PlannerRules
from kvcore.cache.spec import FULL_KINDS, CacheKind, LayerSpec, page_of

StageSpecs = tuple[tuple[LayerSpec, ...], ...]

_PAGES: Final = "vllm/v1/core/kv_cache_planning.py:get_kv_cache_config_from_groups (0.33.0)"
GROUPINGS_BYTES: Final = 24 << 20
"""Bound for the whole process. Groupings are numbers of layers and hold nothing of a visitor."""


class StageGroup(Struct, frozen=True, kw_only=True):
    """One group on one stage: `members` are its distinct specs over all stages."""

    kind: CacheKind
    """The kind of its first layer."""
    block_size: int
    layers: int
    page_size_bytes: int
    """Bytes of one layer in a block; the sum over layers where pages differ."""
    pages: BlockPages
    """The pages of one block of this group on this stage."""
    pool_bytes: int
    """Bytes of one block of this group on this stage."""
    repeats: int
    """The most layers that share a page size."""
    members: tuple[LayerSpec, ...]


class Grouping(Struct, frozen=True, kw_only=True, dict=True):
    """`whole` is the grouping over all stages; `stages` is what each stage has of it."""

    whole: tuple[StageGroup, ...]
    stages: tuple[tuple[StageGroup, ...], ...]
    block_pages: tuple[BlockPages, ...]
    """The pages of one block on each stage: those of the widest group, since groups overlay each other."""
    checked_pages: tuple[BlockPages, ...]
    """The pages that the start-up check counts for a block; they differ for packed groups to 0.28."""
    is_v0: bool = False
    """Whether a block stores all layers, whatever their group."""

    @cached_property
    def bytes_per_block(self) -> tuple[int, ...]:
        """Bytes of `block_pages`."""
        return tuple(map(pages_bytes, self.block_pages))

    @cached_property
    def blocks(self) -> tuple[Quantity, ...]:
        """A block of `block_pages`, explained."""
        return tuple(self.block(pages, stage) for stage, pages in enumerate(self.block_pages))

    def block(self, pages: BlockPages, stage: int) -> Quantity:
        """A block of `pages`, a page of each layer of a group on `stage`."""
        name = "layers" if self.is_v0 or len(self.stages[stage]) == 1 else "group_layers"
        layers = tuple((given(name, layers), self._page(size)) for layers, size in pages if layers)
        return explained("bytes_per_block", sum_of_products, layers, source=_PAGES)

    def _page(self, page_bytes: int) -> Quantity:
        """A page of that size as a spec stores it, one that keeps every token if there is one."""
        specs = (spec for groups in self.stages for group in groups for spec in group.members)
        found = [spec for spec in specs if spec.page_size_bytes == page_bytes]
        spec = next((spec for spec in found if spec.kind in FULL_KINDS), found[0] if found else None)
        return given("page_size_bytes", page_bytes, Unit.BYTES) if spec is None else page_of(spec)

    @cached_property
    def checked_bytes_per_block(self) -> tuple[int, ...]:
        """Bytes of `checked_pages`."""
        return tuple(map(pages_bytes, self.checked_pages))


def group_layers(stage_specs: StageSpecs, rules: PlannerRules, hybrid_manager: bool) -> Grouping:
    """The groups that the planner makes of the specs of a rank of each pipeline stage.

    From 0.11 over all stages, members of a bucket distributed in turn; before, each worker on its own, in
    slices.

    Raises EngineRefusalError where pages or kinds cannot be brought together.

    Source: vllm/v1/core/kv_cache_utils.py:get_kv_cache_groups (0.11.0 to 0.32.0), get_kv_cache_config
    (0.8.5 to 0.10.2), _project_kv_cache_groups_to_worker (0.19.0).
    """
    return _kept_groups(
        stage_specs, rules, hybrid_manager, tuple(spec.made_of for specs in stage_specs for spec in specs)
    )


@bounded(GROUPINGS_BYTES)
def _kept_groups(
    stage_specs: StageSpecs, rules: PlannerRules, hybrid_manager: bool, _made_of: tuple[Quantity | None, ...]
) -> Grouping:
    """Cached by the specs, which are equal by their sizes, and by `_made_of`, which tells two models apart."""
    if rules.global_groups:
        return _grouping(stage_specs, rules, hybrid_manager)
    alone = tuple(_grouping((specs,), rules, hybrid_manager).whole for specs in stage_specs)
    return _overlaid(next(filter(None, alone), ()), alone)


def v0_grouping(stage_specs: StageSpecs) -> Grouping:
    """V0: one pool of blocks that store all layers; it keeps recurrent states outside the pool."""
    stages = tuple(
        tuple(
            _stage_group(Bucket(specs=(spec,), counts=((spec.layers,),)), (0,))
            for spec in specs
            if spec.kind is not CacheKind.MAMBA
        )
        for specs in stage_specs
    )
    pages = tuple(tuple(page for group in groups for page in group.pages) for groups in stages)
    whole = next(filter(None, stages), ())
    return Grouping(whole=whole, stages=stages, block_pages=pages, checked_pages=pages, is_v0=True)


def _overlaid(whole: tuple[StageGroup, ...], stages: tuple[tuple[StageGroup, ...], ...]) -> Grouping:
    """The grouping where groups of a stage overlay each other in a block, so that the widest sets its size."""
    pages = tuple(
        max(groups, key=lambda group: group.pool_bytes).pages if groups else () for groups in stages
    )
    return Grouping(whole=whole, stages=stages, block_pages=pages, checked_pages=pages)


def _grouping(stage_specs: StageSpecs, rules: PlannerRules, hybrid_manager: bool) -> Grouping:
    merged = _merge(stage_specs, rules)
    if not merged.specs:
        return _overlaid((), ((),) * len(stage_specs))
    if not (hybrid_manager and rules.hybrid_manager):
        merged = _promote(merged, rules)
    if (
        not _is_one_type(merged, rules)
        and rules.packed_groups is not PackedGroups.NONE
        and is_packed(merged.specs)
    ):
        return _packed_grouping(merged, rules, len(stage_specs))
    split = (merged,) if _is_one_type(merged, rules) else _split(_unify_pages(merged, rules), rules)
    every_stage = range(len(stage_specs))
    per_stage = tuple(tuple(_stage_group(group, (stage,)) for group in split) for stage in every_stage)
    return _overlaid(tuple(_stage_group(group, every_stage) for group in split), per_stage)


def _packed_grouping(merged: Bucket, rules: PlannerRules, stages: int) -> Grouping:
    rule = rules.packed_groups
    split = packed_groups(merged, rule)
    here = [tuple(group.on(stage) for group in split) for stage in range(stages)]
    whole = tuple(_packed_group(group) for group in split)
    per_stage = tuple(tuple(map(_packed_on_stage, groups, whole)) for groups in here)
    pages = tuple(packed_block_pages(groups, rule) for groups in here)
    checked = tuple(map(_tuple_pages, per_stage)) if rule in FULL_FIRST else pages
    return Grouping(whole=whole, stages=per_stage, block_pages=pages, checked_pages=checked)


def _packed_group(bucket: Bucket) -> StageGroup:
    """The group of a packed bucket: its page is one of every layer."""
    group = _stage_group(bucket, range(len(bucket.counts[0])))
    return replace(group, page_size_bytes=group.pool_bytes)


def _packed_on_stage(bucket: Bucket, whole: StageGroup) -> StageGroup:
    """A stage without any layer of a group stores nothing of it, and still counts its pages as those of the model.

    Source: vllm/v1/core/kv_cache_utils.py:_project_kv_cache_groups_to_worker (0.23.0, 0.32.0), which vllm-ascend leaves
    as it is (0.23.0).
    """
    if any(map(any, bucket.counts)):
        return _packed_group(bucket)
    return replace(whole, layers=0, pages=(), pool_bytes=0)


def _tuple_pages(groups: tuple[StageGroup, ...]) -> BlockPages:
    """A page of each size of the first group, as often as the longest group repeats."""
    repeats = max(group.repeats for group in groups)
    return tuple(
        (repeats, page) for page in dict.fromkeys(spec.page_size_bytes for spec in groups[0].members)
    )


def _stage_group(bucket: Bucket, stages: Sequence[int]) -> StageGroup:
    here = bucket.on(*stages)
    pages = here.block_pages()
    pool = pages_bytes(pages)
    first = bucket.specs[0]
    return StageGroup(
        kind=first.kind,
        block_size=first.block_size,
        layers=sum(layers for layers, _ in pages),
        page_size_bytes=pool if len(bucket.specs) > 1 else first.page_size_bytes,
        pages=pages,
        pool_bytes=pool,
        repeats=max(layers for layers, _ in pages),
        members=bucket.specs,
    )


def _merge(stage_specs: StageSpecs, rules: PlannerRules) -> Bucket:
    """All stages' specs, equal ones together, in the order of first occurrence."""
    stages = len(stage_specs)
    counts: dict[LayerSpec, list[int]] = {}
    for stage, specs in enumerate(stage_specs):
        for spec in specs:
            key = dataclasses.replace(spec, layers=1)
            if not rules.global_groups:
                key = dataclasses.replace(key, num_kv_heads=0, head_size=0, head_size_v=0, dtype="")
            counts.setdefault(key, [0] * stages)[stage] += spec.layers
    ordered = list(counts)
    if not rules.global_groups:
        ordered.sort(key=lambda spec: spec.kind not in FULL_KINDS)
    return Bucket(specs=tuple(ordered), counts=tuple(tuple(counts[spec]) for spec in ordered))


def _promote(bucket: Bucket, rules: PlannerRules) -> Bucket:
    """Windows and chunks with full attention, allocated as full attention."""
    if _is_one_type(bucket, rules):
        return bucket
    full_blocks = {spec.block_size for spec in bucket.specs if spec.kind in FULL_KINDS}
    if full_blocks:
        align_to = full_blocks.pop() if rules.promotion_aligns_blocks and len(full_blocks) == 1 else 0
        bucket = bucket.with_specs(_as_full_attention(spec, align_to) for spec in bucket.specs)
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
    return dataclasses.replace(
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
    """Every spec with the largest page: larger blocks where they come out even, else padding."""
    largest = max(spec.page_size_bytes for spec in bucket.specs)
    try:
        return bucket.with_specs(_with_page(spec, largest, rules) for spec in bucket.specs)
    except EngineRefusalError:
        if not _may_allocate_in_full(bucket, rules):
            raise
        return _promote(bucket, rules)


_PAGES_BY_RULE: Final[Mapping[PageUnification, tuple[bool, bool, bool]]] = {
    PageUnification.NONE: (False, False, False),
    PageUnification.BLOCKS: (True, False, False),
    PageUnification.BLOCKS_MAMBA: (True, True, False),
    PageUnification.BLOCKS_MAMBA_ATTENTION: (True, True, True),
}
"""Whether blocks become larger, states are padded, and the pages of attention too."""


def _with_page(spec: LayerSpec, largest: int, rules: PlannerRules) -> LayerSpec:
    page = spec.page_size_bytes
    if page == largest:
        return spec
    widens, pads_states, pads_attention = _PAGES_BY_RULE[rules.page_unification]
    if spec.kind is CacheKind.MAMBA and pads_states:
        return dataclasses.replace(spec, page_size_bytes=largest)
    if widens and largest % page == 0:
        return dataclasses.replace(
            spec, block_size=spec.block_size * (largest // page), page_size_bytes=largest
        )
    if pads_attention and spec.kind not in (CacheKind.MLA_ATTENTION, CacheKind.MAMBA):
        return dataclasses.replace(spec, page_size_bytes=largest)
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
                members = distributed(counts, number, index)
            else:
                members = (min(size, sum(counts) - index * size),)
            groups.append(Bucket(specs=(spec,), counts=(members,)))
    return tuple(groups)
