"""Modules and keys that vllm-ascend stores otherwise than the vLLM that it runs on: whole, cut, in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as rebuilt
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.kept import kept
from kvcore.base.units import ceil_div, round_up
from kvcore.engine.traits import traits_of
from kvcore.engines.vllm.versions import vllm_release
from kvcore.engines.vllm_ascend.additional import Additional, ModuleRanks
from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    Linear,
    Module,
    Parameter,
    Split,
    VocabEmbedding,
)
from kvcore.model.caches import CacheState, ChunkedLocal, FullAttention, Mla, SlidingWindow, SparseIndexer

WHOLE_QUERIES: Final = ("q_b_proj", "kv_b_proj", "attn.wq_b", "attn.attn_sink")
"""Modules that each rank stores whole where it attends to a part of the tokens with all heads.

Source: vllm_ascend/ops/linear_op.py:_get_column_parallel_op (0.13.0, 0.23.0), models/deepseek_v4.py (0.23.0).
"""


class Storing(Struct, frozen=True, kw_only=True):
    """Differences from vLLM for one scenario."""

    tensor_ranks: int = 1
    shared_piece: str = ""
    """A piece of the names of shared experts that the release looks for; empty: as vLLM stores them."""
    has_whole_shared: bool = False
    has_whole_queries: bool = False
    redundant_experts: int = 0
    packs_index_keys: bool = False
    ranks: ModuleRanks = ModuleRanks()


@kept
def stored(architecture: Architecture, storing: Storing) -> Architecture:
    """`architecture` with what `storing` says."""
    layers = dict[int, Layer]()

    def of_layer(layer: Layer) -> Layer:
        if id(layer) not in layers:
            is_dense = not any(isinstance(module, Experts) for module in layer.modules)
            modules = tuple(_module(module, storing, is_dense) for module in layer.modules)
            caches = tuple(
                replace(cache, index_head_dim=packed_index_width(cache.index_head_dim))
                if isinstance(cache, SparseIndexer) and storing.packs_index_keys
                else cache
                for cache in layer.caches
            )
            layers[id(layer)] = replace(layer, modules=modules, caches=caches)
        return layers[id(layer)]

    def tables(modules: tuple[Module, ...]) -> tuple[Module, ...]:
        return tuple(_table(module, storing) for module in modules)

    return rebuilt(
        architecture,
        layers=tuple(map(of_layer, architecture.layers)),
        draft_layers=tuple(map(of_layer, architecture.draft_layers)),
        first=tables(architecture.first),
        every=tables(architecture.every),
        last=tables(architecture.last),
    )


def packed_index_width(index_head_dim: int) -> int:
    """An indexer's keys in 8 bits with a scale in 16, as elements of 16 bits.

    Source: vllm_ascend/patch/platform/patch_kv_cache_interface.py:AscendMLAAttentionSpec.page_size_bytes (0.18.0),
    core/kv_cache_interface.py (0.23.0).

    Example:
        >>> packed_index_width(128)
        65
    """
    return index_head_dim // 2 + 1


def _module(module: Module, storing: Storing, is_dense: bool) -> Module:
    if isinstance(module, Experts):
        return replace(module, num_experts=module.num_experts + storing.redundant_experts)
    if storing.has_whole_queries and module.name.endswith(WHOLE_QUERIES) and "indexer" not in module.name:
        if isinstance(module, Parameter):
            return replace(module, replicated=module.replicated * module.sharded, sharded=1)
        if isinstance(module, Linear):
            return replace(module, split=Split.REPLICATED)
    if not isinstance(module, Linear):
        return module
    if "shared_expert" in module.name:
        return _shared(module, storing)
    if module.name.endswith("o_proj") and storing.ranks.output:
        return _cut_over(module, storing.ranks.output, storing.tensor_ranks)
    if is_dense and module.name.endswith(("gate_up_proj", "down_proj")) and storing.ranks.dense:
        return _cut_over(module, storing.ranks.dense, storing.tensor_ranks)
    return module


def _shared(module: Linear, storing: Storing) -> Linear:
    if not storing.shared_piece:
        return module
    is_whole = storing.has_whole_shared and storing.shared_piece in module.name
    split = Split.REPLICATED if is_whole else module.split
    return replace(module, whole_with_expert_ranks=False, split=split)


def _cut_over(module: Linear, ranks: int, tensor_ranks: int) -> Linear:
    """`module` of such a size that a tensor parallel rank's part is what one of `ranks` stores of the whole."""
    if module.split is Split.ROW:
        return replace(module, in_features=ceil_div(module.in_features, ranks) * tensor_ranks)
    outputs = (
        replace(output, units=ceil_div(output.units, ranks) * tensor_ranks) for output in module.outputs
    )
    return replace(module, outputs=tuple(outputs))


def _table(module: Module, storing: Storing) -> Module:
    """A table over the vocabulary, its padded rows divided over data parallel ranks where these share it.

    Source: vllm_ascend/ops/vocab_parallel_embedding.py:AscendVocabParallelEmbedding.__init__ (0.11.0, 0.23.0).
    """
    if not isinstance(module, VocabEmbedding):
        return module
    ranks = storing.ranks.head if "head" in module.name else storing.ranks.embedding
    if not ranks:
        return module
    rows = round_up(module.num_embeddings, module.padding)
    return replace(module, num_embeddings=ceil_div(rows, ranks) * storing.tensor_ranks, padding=1)


def kept_states(
    caches: tuple[CacheState, ...], *, keeps_windows: bool, joins_keys: bool
) -> Iterator[CacheState]:
    """The states of a layer as the engine keeps them. Windows and chunks keep the whole context before 0.14; keys of an
    indexer are joined to the latent vector of the same layer, and before 0.14 the layer counts as full attention, with
    keys and values.

    Source: vllm_ascend/worker/model_runner_v1.py:NPUModelRunner.get_kv_cache_spec (0.9.1, 0.11.0, 0.13.0:
    FullAttentionSpec for every decoder layer, of 576 for sparse attention and still so in 0.14.0rc1; 0.14.0rc1: the
    layer's own; 0.15.0rc1, 0.18.0, 0.23.0: 704 together); github.com/vllm-project/vllm-ascend/issues/6847
    (0.14.0rc2.dev150): GLM-5 with a draft, 1947 blocks in 25.83 GiB.
    """
    index = sum(state.index_head_dim for state in caches if isinstance(state, SparseIndexer))
    for state in caches:
        if isinstance(state, SlidingWindow | ChunkedLocal) and not keeps_windows:
            size, size_v = state.head_size, state.head_size_v
            yield FullAttention(num_kv_heads=state.num_kv_heads, head_size=size, head_size_v=size_v)
        elif isinstance(state, Mla) and index and joins_keys:
            yield replace(state, index_head_dim=index)
        elif isinstance(state, Mla) and index:
            size = state.kv_lora_rank + state.qk_rope_head_dim
            yield FullAttention(num_kv_heads=1, head_size=size, head_size_v=size)
        elif not isinstance(state, SparseIndexer):
            yield state


def cuts_context(architecture: Architecture, additional: Additional, version: Version) -> bool:
    """Whether ranks with FlashComm attend to a part of the tokens each: models with sparse attention.

    Source: vllm_ascend/utils.py:enable_dsa_cp (0.12.0rc1 without; 0.13.0, 0.19.1rc1: with FlashComm; 0.20.2rc1, 0.23.0,
    0.25.1rc1: enable_dsa_cp), ops/linear_op.py:_get_column_parallel_op.
    """
    is_asked = version < vllm_release("0.20.1") or additional.enable_dsa_cp
    return is_asked and version >= vllm_release("0.13.0") and traits_of(architecture).is_sparse
