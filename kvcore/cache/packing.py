"""Packed groups: layers with pages of different sizes side by side in one block (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.cache.spec import FULL_KINDS, CacheKind, LayerSpec
from kvcore.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Layers that may share block tables, equal ones together; `counts[i][stage]` layers are `specs[i]`."""

    specs: tuple[LayerSpec, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def repeats(self) -> int:
        """How often its pattern of page sizes repeats: the layers of the most frequent page size."""
        return max(self.layers_by_page().values())

    def layers_by_page(self) -> dict[int, int]:
        """Layers of each page size."""
        layers: dict[int, int] = {}
        for spec, counts in zip(self.specs, self.counts, strict=True):
            layers[spec.page_size_bytes] = layers.get(spec.page_size_bytes, 0) + sum(counts)
        return layers

    def is_balanced(self) -> bool:
        """Whether every page size has as many layers as the others."""
        return len(set(self.layers_by_page().values())) == 1


def is_packed(specs: Sequence[LayerSpec]) -> bool:
    """Whether the model keeps windows of latent vectors in pages of several sizes."""
    windows = any(spec.kind is CacheKind.SLIDING_WINDOW_MLA for spec in specs)
    return windows and len({spec.page_size_bytes for spec in specs}) > 1


def packed_groups(whole: Bucket, *, full_first: bool) -> tuple[Bucket, ...]:
    """The groups of a packed model: every bucket is cut into as many groups as bring about equal repeats.

    `full_first`: the first bucket is that of full attention, and it alone sets the least group size (to
    0.28); otherwise every balanced bucket of several page sizes does, and unbalanced ones stay whole (from
    0.29).

    Source: vllm/v1/core/kv_cache_utils.py:_get_kv_cache_groups_uniform_groups (0.28.0),
    _get_packed_kv_cache_groups (0.32.0).
    """
    buckets = _buckets(whole)
    if full_first:
        buckets.sort(key=lambda bucket: bucket.specs[0].kind not in FULL_KINDS)
        repeats = [bucket.repeats for bucket in buckets]
        size = least_padding(repeats, at_least=repeats[0])
        return tuple(group for bucket in buckets for group in _cut(bucket, ceil_div(bucket.repeats, size)))
    balanced = [bucket for bucket in buckets if bucket.is_balanced()]
    least = max((bucket.repeats for bucket in balanced if len(bucket.layers_by_page()) > 1), default=0)
    if least:
        size = least_padding([bucket.repeats for bucket in balanced], at_least=least)
        numbers = [ceil_div(b.repeats, size) if b in balanced else 1 for b in buckets]
    else:
        numbers = _numbers_by_bytes(buckets)
    return tuple(
        group for bucket, number in zip(buckets, numbers, strict=True) for group in _cut(bucket, number)
    )


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


def _numbers_by_bytes(buckets: Sequence[Bucket]) -> list[int]:
    """Without a pattern: windows are cut to what a block holds anyway, everything else stays whole."""
    windows = [bucket.specs[0].kind is CacheKind.SLIDING_WINDOW_MLA for bucket in buckets]
    anchor = max(
        max(bucket.layers_by_page()) if window else _page_bytes(bucket)
        for bucket, window in zip(buckets, windows, strict=True)
    )
    numbers = []
    for bucket, window in zip(buckets, windows, strict=True):
        fitting = max(anchor // bucket.specs[0].page_size_bytes, 1)
        layers = sum(bucket.layers_by_page().values())
        numbers.append(ceil_div(layers, fitting) if window else 1)
    return numbers


def _page_bytes(bucket: Bucket) -> int:
    return sum(page * layers for page, layers in bucket.layers_by_page().items())


def _cut(bucket: Bucket, number: int) -> list[Bucket]:
    return [
        Bucket(specs=bucket.specs, counts=tuple(dealt(counts, number, index) for counts in bucket.counts))
        for index in range(number)
    ]


def dealt(counts: tuple[int, ...], number: int, index: int) -> tuple[int, ...]:
    """How many of each stage's layers fall to group `index` when they are dealt out to `number` in turn.

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
