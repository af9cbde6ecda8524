"""Packed groups: layers with pages of different sizes side by side in one block (DeepSeek-V4)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.units import ceil_div
from kvcore.cache.rules import PackedGroups
from kvcore.cache.spec import FULL_KINDS, CacheKind, LayerSpec

BlockPages: TypeAlias = tuple[tuple[int, int], ...]
"""Layers and the bytes of a page of one of them, for each size of page in a block."""


class Bucket(Struct, frozen=True, kw_only=True):
    """Layers that may share block tables, equal ones together; `counts[i][stage]` layers are `specs[i]`."""

    specs: tuple[LayerSpec, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def repeats(self) -> int:
        """Repeats of its pattern of page sizes: the layers of the most frequent page size."""
        return max(self.layers_by_page().values())

    def on(self, *stages: int) -> Bucket:
        """Its layers on some stages, taken as one stage."""
        counts = tuple((sum(each[stage] for stage in stages),) for each in self.counts)
        return Bucket(specs=self.specs, counts=counts)

    def with_specs(self, specs: Iterable[LayerSpec]) -> Bucket:
        """The same with `specs` in place of its own, equal ones together."""
        counts: dict[LayerSpec, tuple[int, ...]] = {}
        for spec, layers in zip(specs, self.counts, strict=True):
            before = counts.get(spec, (0,) * len(layers))
            counts[spec] = tuple(a + b for a, b in zip(before, layers, strict=True))
        return Bucket(specs=tuple(counts), counts=tuple(counts.values()))

    def layers_by_page(self) -> dict[int, int]:
        """Layers of each page size."""
        layers: dict[int, int] = {}
        for spec, counts in zip(self.specs, self.counts, strict=True):
            layers[spec.page_size_bytes] = layers.get(spec.page_size_bytes, 0) + sum(counts)
        return layers

    def block_pages(self) -> BlockPages:
        """The pages of a block of all its layers."""
        return tuple((layers, page) for page, layers in self.layers_by_page().items())

    @property
    def drafts(self) -> int:
        """Layers of a draft."""
        return sum(sum(counts) for spec, counts in zip(self.specs, self.counts, strict=True) if spec.is_draft)

    def without_drafts(self) -> Bucket:
        """The same without the layers of a draft."""
        kept = [pair for pair in zip(self.specs, self.counts, strict=True) if not pair[0].is_draft]
        return Bucket(specs=tuple(spec for spec, _ in kept), counts=tuple(counts for _, counts in kept))

    def is_balanced(self) -> bool:
        """Whether every page size has as many layers as the others."""
        return len(set(self.layers_by_page().values())) == 1


def is_packed(specs: Sequence[LayerSpec]) -> bool:
    """Whether the model keeps windows of latent vectors, or rings, in pages of several sizes.

    Source: vllm/v1/attention/backends/utils.py:resolve_kv_cache_layout, supported_kv_cache_layouts of their backends
    (0.33.0): blocks with all layers inside.
    """
    packed = any(spec.kind in (CacheKind.SLIDING_WINDOW_MLA, CacheKind.CIRCULAR_BUFFER) for spec in specs)
    return packed and len({spec.page_size_bytes for spec in specs}) > 1


PADDED: Final = frozenset(
    {PackedGroups.PADDED_TUPLES, PackedGroups.TUPLES_AND_DRAFTS, PackedGroups.PADDED_SLOTS}
)
"""Rules by which pages of windows are as large as one of the first group's."""

FULL_FIRST: Final = PADDED | {PackedGroups.LAYER_TUPLES}
"""Rules by which full attention comes first and sets the size of groups."""


def packed_groups(whole: Bucket, rule: PackedGroups) -> tuple[Bucket, ...]:
    """The groups of a packed model: every bucket is cut into as many groups as bring about equal repeats.

    To 0.28 the first bucket is that of full attention, and it alone sets the least group size; to 0.26 pages of the
    others are padded to the next size that it has. From 0.29 on every balanced bucket of several page sizes sets it,
    and unbalanced ones stay whole.

    Source: vllm/v1/core/kv_cache_utils.py:_get_kv_cache_groups_uniform_groups (0.20.2, 0.26.0, 0.28.0),
    _get_packed_kv_cache_groups (0.32.0).
    """
    buckets = _buckets(whole)
    if rule in FULL_FIRST:
        buckets.sort(key=_full_first)
        if rule in PADDED:
            sizes = sorted(buckets[0].layers_by_page())
            buckets = [buckets[0], *(_padded(bucket, sizes) for bucket in buckets[1:])]
        repeats = [bucket.repeats for bucket in buckets]
        size = least_padding(repeats, at_least=repeats[0])
        numbers = [
            1 if bucket.specs[0].kind in FULL_KINDS else ceil_div(bucket.repeats, size) for bucket in buckets
        ]
        return tuple(
            group for bucket, number in zip(buckets, numbers, strict=True) for group in _cut(bucket, number)
        )
    numbers = _numbers_by_bytes(buckets, _repeats_of_groups(buckets))
    return tuple(
        group for bucket, number in zip(buckets, numbers, strict=True) for group in _cut(bucket, number)
    )


def _full_first(bucket: Bucket) -> tuple[bool, int]:
    """Sort key: full attention first, and of it buckets with more page sizes."""
    is_full = bucket.specs[0].kind in FULL_KINDS
    return not is_full, -len(bucket.layers_by_page()) if is_full else 0


def packed_block_pages(groups: Sequence[Bucket], rule: PackedGroups) -> BlockPages:
    """The pages of a block on a stage: those of the widest group, since groups overlay each other.

    padded-tuples  a page of each size of the first group, as often as the longest group repeats
    tuples-and-drafts  the same without the draft's layers, and one more for each of those
    padded-slots   of each page size as many as the group with the most of them has

    From 0.29 on a block is padded to a multiple of what the kernels of all its layers need.

    Source: vllm/v1/core/kv_cache_utils.py:_get_kv_cache_config_deepseek_v4 (0.22.1, 0.23.0),
    vllm/v1/core/kv_cache_planning.py:_get_kv_cache_bytes_per_block (0.33.0).

    Example:
        >>> from kvcore.cache.spec import LayerSpec
        >>> page = LayerSpec(kind=CacheKind.MLA_ATTENTION, layers=1, block_size=256, page_size_bytes=100)
        >>> first = Bucket(specs=(page, dataclasses.replace(page, page_size_bytes=10)), counts=((2,), (1,)))
        >>> window = Bucket(specs=(page,), counts=((3,),))
        >>> packed_block_pages((first, window), PackedGroups.PADDED_TUPLES)
        ((3, 100), (3, 10))
        >>> packed_block_pages((first, window), PackedGroups.PADDED_SLOTS)
        ((3, 100), (1, 10))
    """
    pages = [group.layers_by_page() for group in groups]
    match rule:
        case PackedGroups.PADDED_TUPLES:
            repeats = max(max(layers.values()) for layers in pages)
            return tuple((repeats, size) for size in pages[0])
        case PackedGroups.TUPLES_AND_DRAFTS:
            drafts = sum(group.drafts for group in groups)
            own = [group.without_drafts().layers_by_page() for group in groups]
            repeats = max(max(layers.values(), default=0) for layers in own) + drafts
            return tuple((repeats, size) for size in pages[0])
        case PackedGroups.PADDED_SLOTS:
            sizes = dict.fromkeys(size for layers in pages for size in layers)
            return tuple((max(layers.get(size, 0) for layers in pages), size) for size in sizes)
        case PackedGroups.NONE | PackedGroups.LAYER_TUPLES | PackedGroups.PATTERN_REPEATS:
            widest = max((group.block_pages() for group in groups), key=pages_bytes)
            alignment = math.lcm(*(spec.stride_alignment for group in groups for spec in group.specs))
            padding = -pages_bytes(widest) % alignment
            return (*widest, (1, padding)) if padding else widest
        case other:
            assert_never(other)


def pages_bytes(pages: BlockPages) -> int:
    """Bytes of all `pages` together."""
    return sum(layers * page_bytes for layers, page_bytes in pages)


def _padded(bucket: Bucket, sizes: Sequence[int]) -> Bucket:
    """The bucket with its pages padded to the next of `sizes`; a page above all of them stays."""
    pages = [spec.page_size_bytes for spec in bucket.specs]
    padded = [next((size for size in sizes if size >= page), page) for page in pages]
    specs = (
        dataclasses.replace(spec, page_size_bytes=page)
        for spec, page in zip(bucket.specs, padded, strict=True)
    )
    return replace(bucket, specs=tuple(specs))


def least_padding(values: Sequence[int], *, at_least: int) -> int:
    """The group size that needs the fewest padding layers, the larger one of equals.

    Source: vllm/v1/core/kv_cache_utils.py:_approximate_gcd (0.28.0).

    Example:
        >>> least_padding([43, 21, 20], at_least=21)
        22
    """
    sizes = range(at_least, max(at_least, *values) + 1)
    return min(sizes, key=lambda size: (sum(-value % size for value in values), -size))


def _buckets(whole: Bucket) -> list[Bucket]:
    members: dict[tuple[object, ...], list[int]] = {}
    for index, spec in enumerate(whole.specs):
        kind = CacheKind.FULL_ATTENTION if spec.kind in FULL_KINDS else spec.kind
        key = (kind, spec.block_size, spec.sliding_window, spec.attention_chunk_size)
        members.setdefault(key, []).append(index)
    return [
        Bucket(specs=tuple(whole.specs[i] for i in indices), counts=tuple(whole.counts[i] for i in indices))
        for indices in members.values()
    ]


def _repeats_of_groups(buckets: Sequence[Bucket]) -> int:
    """Repeats of the pattern of page sizes in a group; 0 without a balanced bucket of several page sizes."""
    balanced = [bucket for bucket in buckets if bucket.is_balanced()]
    least = max((bucket.repeats for bucket in balanced if len(bucket.layers_by_page()) > 1), default=0)
    return least and least_padding([bucket.repeats for bucket in balanced], at_least=least)


STATES: Final = frozenset({CacheKind.MAMBA, CacheKind.CIRCULAR_BUFFER})
"""Kinds of which a block may hold a single layer."""


def _numbers_by_bytes(buckets: Sequence[Bucket], repeats: int) -> list[int]:
    """The number of groups that each bucket is cut into.

    Balanced buckets are cut by the repeats, where there are some; states, and windows where there are no repeats, by
    the room in a block that the others need anyway; everything else stays whole.

    Source: vllm/v1/core/kv_cache_planning.py:_get_packed_kv_cache_groups (0.33.0).
    """
    windows = () if repeats else (CacheKind.SLIDING_WINDOW, CacheKind.SLIDING_WINDOW_MLA)
    least = [ceil_div(each.repeats, repeats) if repeats and each.is_balanced() else 1 for each in buckets]
    are_states = [each.specs[0].kind in (*STATES, *windows) for each in buckets]
    anchor = max(
        sum(
            ceil_div(layers, sum(pages.values()) if is_state else number) * page
            for page, layers in pages.items()
        )
        for pages, number, is_state in zip(
            [each.layers_by_page() for each in buckets], least, are_states, strict=True
        )
    )
    numbers = []
    for bucket, number, is_state in zip(buckets, least, are_states, strict=True):
        fitting = max(anchor // bucket.specs[0].page_size_bytes, 1)
        layers = sum(bucket.layers_by_page().values())
        numbers.append(max(number, ceil_div(layers, fitting)) if is_state else number)
    return numbers


def _cut(bucket: Bucket, number: int) -> list[Bucket]:
    """`number` groups: layers with pages of one size are distributed in turn, specs in their order."""
    begins, before = [], dict.fromkeys((spec.page_size_bytes for spec in bucket.specs), 0)
    for spec, counts in zip(bucket.specs, bucket.counts, strict=True):
        begins.append(before[spec.page_size_bytes])
        before[spec.page_size_bytes] += sum(counts)
    return [
        Bucket(
            specs=bucket.specs,
            counts=tuple(
                distributed(counts, number, index, begin)
                for counts, begin in zip(bucket.counts, begins, strict=True)
            ),
        )
        for index in range(number)
    ]


def distributed(counts: tuple[int, ...], number: int, index: int, begin: int = 0) -> tuple[int, ...]:
    """Layers of each stage in group `index`, when they are dealt to `number` groups in turn, after `begin` others.

    Example:
        >>> distributed((26, 26), 6, 0), distributed((26, 26), 6, 2)
        ((5, 4), (4, 5))
    """
    members = []
    for count in counts:
        end = begin + count
        members.append(len(range(begin + (index - begin) % number, end, number)))
        begin = end
    return tuple(members)
