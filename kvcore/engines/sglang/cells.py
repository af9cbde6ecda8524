"""Bytes of a token on a rank, as a release counts them and as its pools are built."""

from __future__ import annotations

from typing import Final, NamedTuple

from packaging.version import Version

from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, Arguments
from kvcore.engines.sglang.shapes import Heads, Shape
from kvcore.engines.sglang.tables import sglang_release

V0_5_23: Final = sglang_release("0.5.23")
FP8: Final = "fp8_e4m3"
NARROW: Final = ("fp4_e2m1", "nvfp4", "fp4_mx_block16")
SCALES: Final = 16
"""Elements that share a scale in four bits."""
PACKED_ROW: Final = 128
"""Elements of a latent vector that share a scale."""


def element_bytes(dtype: str) -> float:
    """Bytes of an element of the pool, four bits without their scales."""
    if dtype in NARROW:
        return 0.5
    return {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 1)


def stage_range(layers: int, stages: int, stage: int) -> range:
    """Layers of a pipeline stage: of a remainder the last stages have one more each.

    Source: distributed/utils.py:get_pp_indices (0.5.9, 0.5.23).

    Example:
        >>> [len(stage_range(61, 4, stage)) for stage in range(4)]
        [15, 15, 15, 16]
    """
    base, more = divmod(layers, stages)
    first = stage * base + max(0, stage - (stages - more))
    return range(first, first + base + (1 if stage >= stages - more else 0))


class HostRow(NamedTuple):
    """Bytes of a token of a stage in a pool of the host's memory."""

    sized: float
    """Those that a size is divided by."""
    built: float


class Cells:
    """The bytes of a token of one start: its arguments, the model, the dtype of its keys."""

    def __init__(
        self, arguments: Arguments, shape: Shape, version: Version, kv_dtype: str, dsa_backend: str
    ) -> None:
        self.arguments, self.shape, self.version = arguments, shape, version
        self.kv_dtype, self.dsa_backend = kv_dtype, dsa_backend
        self.ranks = arguments.attention_ranks
        self.width = element_bytes(kv_dtype)

    # Bytes of a token

    def _stages(self) -> list[range]:
        count = self.arguments.pp_size
        return [stage_range(self.shape.layers, count, stage) for stage in range(count)]

    def _per_layer(self, heads: Heads) -> float:
        return heads.on_rank(self.ranks) * (heads.key + heads.value) * self.width

    def _index_bytes(self, layers: int) -> int:
        width = self.shape.index_width
        return layers * (width + width // PACKED_ROW * 4)

    def _index_count(self, stage: range) -> int:
        """Layers of a stage that keep keys to pick by: all of them before 0.5.18."""
        if self.version < V0_5_18:
            return len(stage)
        return sum(self.shape.index_layers[place] for place in stage if place < len(self.shape.index_layers))

    @property
    def _packed_row(self) -> int | None:
        """Bytes of a latent vector in FlashMLA's layout, whose positions stay in 16 bits; None for plain ones.

        Source: model_runner_kv_cache_mixin.py:calculate_mla_kv_cache_dim (0.5.9, 0.5.13), mem_cache/
        kv_cache_configurator.py:calculate_mla_kv_cache_dim (0.5.23).
        """
        if not self.shape.index_width or self.kv_dtype != FP8 or self.dsa_backend == "trtllm":
            return None
        assert self.shape.latent is not None
        latent, position = self.shape.latent
        return latent + latent // PACKED_ROW * 4 + position * 2

    def latent_row(self, *, is_built: bool) -> float:
        """Bytes of a latent vector of a layer, as it is counted or as it is built."""
        assert self.shape.latent is not None
        row = self._packed_row
        if row is not None and (is_built or self.version >= V0_5_18):
            return row
        width = sum(self.shape.latent)
        if self.kv_dtype in NARROW:
            return width * 0.5 + width // SCALES
        return width * self.width

    def cell(self, stage: range, *, is_built: bool = False) -> float:
        """Bytes of a token on a rank of a stage, without a draft.

        Source: model_runner_kv_cache_mixin.py:get_cell_size_per_token (0.5.9), model_executor/pool_configurator.py:
        DefaultPoolConfigurator._compute_cell_size (0.5.13, 0.5.18, 0.5.23).
        """
        shape = self.shape
        layers = len(stage)
        if shape.is_hybrid:
            layers = sum(1 for place in shape.attention if place in stage)
        if shape.latent is not None:
            found = self.latent_row(is_built=is_built) * layers
            return found + (self._index_bytes(self._index_count(stage)) if shape.index_width else 0)
        heads = shape.heads.on_rank(self.ranks)
        if self.kv_dtype in NARROW:
            return self._narrow_cell(heads, layers)
        found = heads * (shape.heads.key + shape.heads.value) * layers * self.width
        if shape.block_indexer is not None:
            sparse, keys_only, width = shape.block_indexer
            found += ((sparse - keys_only) * 2 + keys_only) * width * 2
        if self.kv_dtype == "mxfp8":
            found += heads * (shape.heads.key + shape.heads.value) * layers // 32
        return found

    def _narrow_cell(self, heads: int, layers: int) -> float:
        """Source: pool_configurator.py:DefaultPoolConfigurator._compute_cell_size (0.5.13, 0.5.18), layers/
        quantization/fp4_kv_cache_quant_method.py:compute_cell_size (0.5.23)."""
        shape = self.shape.heads
        plain = heads * (shape.key + shape.value) * layers // 2
        scales = heads * shape.key * layers * 2 // SCALES
        return plain + scales

    @property
    def stages(self) -> list[range]:
        """Layers of each pipeline stage."""
        return self._stages()

    def host_rows(self, stage: range) -> HostRow:
        """Bytes of a token in the host's memory, of one pool of keys and values or of latent vectors.

        Keys that layers pick by are a part of the pool in 0.5.9, and a pool of their own with the same pages later; up
        to 0.5.21 there are such keys of every layer.

        Source: mem_cache/memory_pool_host.py:MHATokenToKVPoolHost, MLATokenToKVPoolHost.get_size_per_token (0.4.10,
        0.5.13), NSATokenToKVPoolHost (0.5.9), NSAIndexerPoolHost (0.5.11), mem_cache/pool_host/dsa.py (0.5.23).
        """
        if not self.shape.index_width:
            row = self.cell(stage, is_built=True)
            return HostRow(sized=row, built=row)
        layers = len(stage) if self.version < V0_5_23 else self._index_count(stage)
        row, index = self.latent_row(is_built=True) * len(stage), self._index_bytes(layers)
        return HostRow(sized=row if self.version >= V0_5_11 else row + index, built=row + index)

    def _draft_bytes(self, stage: range, cell: float) -> float:
        """Bytes of a token that the draft's own pool adds.

        Source: pool_configurator.py:DefaultPoolConfigurator.__init__ (0.5.18, 0.5.23: the draft's layers are as
        large as the model's).
        """
        drafts, layers = self.arguments.draft_layers, len(stage)
        if self.shape.is_hybrid:
            layers = sum(1 for place in self.shape.attention if place in stage)
        if not drafts or not layers:
            return 0
        if not self.shape.index_width:
            return int(cell * drafts / layers)
        index = self._index_bytes(self._index_count(stage))
        return int((cell - index) * drafts / layers) + self._index_bytes(drafts)
