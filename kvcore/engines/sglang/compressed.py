"""DeepSeek-V4: pools of a window, of every fourth token, of every 128th, and of the compressors' states."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from packaging.version import Version

from kvcore.base.units import ceil_div
from kvcore.engines.sglang.shapes import Compressed
from kvcore.engines.sglang.tables import sglang_release

V0_5_18: Final = sglang_release("0.5.18")
V0_5_21: Final = sglang_release("0.5.21")
STATE_BYTES: Final = 4
PADDED: Final = 576
"""Pages are padded to a multiple of this.

Source: mem_cache/deepseek_v4_memory_pool.py:DeepSeekV4SingleKVPool.create_buffer (0.5.13, 0.5.23).
"""
RINGS: Final = {False: (8, 128), True: (16, 256)}
"""Rows of a compressor's ring for every fourth token and for every 128th, without drafts and with them.

Source: mem_cache/deepseek_v4_memory_pool.py:get_compress_state_ring_size (0.5.13, 0.5.18, 0.5.23).
"""
OTHER_LAYERS: Final = (1, 2)


class CompressedPools(Struct, frozen=True, kw_only=True):
    """The pools of one rank."""

    model: Compressed
    version: Version
    tokens: int
    swa_tokens: int
    bytes_per_token: float
    fixed_bytes: int
    page: int
    rings: tuple[int, int]

    def built(self, requests: int) -> int:
        """Bytes of all pools, for so many requests.

        Source: mem_cache/deepseek_v4_memory_pool.py:DeepSeekV4TokenToKVPool, mem_cache/deepseek_v4_compress_state.py:
        CompressStatePool (0.5.13, 0.5.18, 0.5.23).
        """
        model, page = self.model, self.page
        fourth, many = _count(model, 4), _count(model, 128)
        slot = model.nope + model.rope * 2 + 8
        head, index = model.nope + model.rope, model.index
        pages = self._pages(self.swa_tokens, page)
        found = pages * _padded(page, slot) * len(model.ratios)
        small, tiny = page // 4, page // 128
        found += self._pages(self.tokens // 4, small) * _padded(small, slot) * fourth
        found += self._pages(self.tokens // 128, tiny) * _padded(tiny, slot) * many
        index_page = small * (index + index // 128 * 4)
        found += self._pages(self.tokens // 4, small) * index_page * fourth
        ring, long_ring = self.rings
        spans = self.swa_tokens // (page if self.version >= V0_5_21 else model.window)
        rows = ceil_div(spans * ring + ring + 1, 4) * 4
        found += rows * 4 * (head + index) * STATE_BYTES * fourth
        slots = (requests + 1) * long_ring if self.version >= V0_5_18 else spans * long_ring
        found += ceil_div(slots + long_ring + 1, 128) * 128 * 2 * head * STATE_BYTES * many
        return found

    def _pages(self, size: int, page: int) -> int:
        if self.version >= V0_5_21:
            return ceil_div(size + self.page, page)
        return (size + page + 1) // page


def _count(model: Compressed, ratio: int) -> int:
    return sum(1 for one in model.ratios if one == ratio)


def _padded(page: int, slot: int) -> int:
    return ceil_div(page * slot, PADDED) * PADDED


def compressed_pools(
    model: Compressed,
    available: int,
    *,
    version: Version,
    ratio: float,
    page: int,
    requests: int | None,
    context: int,
    has_drafts: bool,
    most_tokens: int | None,
) -> CompressedPools:
    """The pools in so many bytes.

    Source: model_executor/pool_configurator.py:DSV4PoolConfigurator (0.5.13, 0.5.18, 0.5.23).
    """
    rings = RINGS[has_drafts]
    each = _bytes_per_token(model, version, ratio, page, rings)
    if has_drafts:
        each *= (len(model.ratios) + 1) / len(model.ratios)
    fixed = 0
    if version >= V0_5_18:
        if requests is None:
            tokens = int(available / each)
            requests = min(max(min(int(tokens / context * 512), 4096), 2048), tokens // 2)
        rows = ceil_div((requests + 1) * rings[1] + rings[1] + 1, 128) * 128
        fixed = rows * 2 * (model.nope + model.rope) * STATE_BYTES * _count(model, 128)
    tokens = int(max(available - fixed, 0) / each) // page * page
    if most_tokens is not None:
        tokens = min(tokens, most_tokens) // page * page
    return CompressedPools(
        model=model,
        version=version,
        tokens=tokens,
        swa_tokens=int(tokens * ratio) // page * page,
        bytes_per_token=each,
        fixed_bytes=fixed,
        page=page,
        rings=rings,
    )


def _bytes_per_token(
    model: Compressed, version: Version, ratio: float, page: int, rings: tuple[int, int]
) -> float:
    fourth, many, layers = _count(model, 4), _count(model, 128), len(model.ratios)
    slot = model.nope + model.rope * 2 + 8
    head, index = model.nope + model.rope, model.index
    index_bytes = index + index // 128 * 4
    states = 4 * (head + index) * STATE_BYTES
    if version >= V0_5_21:
        window = _padded(page, slot) / page * layers + rings[0] / page * states * fourth
        kept = _padded(page // 4, slot) / (page // 4) / 4 * fourth + index_bytes / 4 * fourth
        return ratio * window + kept + _padded(page // 128, slot) / (page // 128) / 128 * many
    found = ratio * slot * layers + slot / 4 * fourth + slot / 128 * many + index_bytes / 4 * fourth
    found += ratio * rings[0] / model.window * states * fourth
    if version < V0_5_18:
        found += ratio * rings[1] / model.window * 2 * head * STATE_BYTES * many
    return found
