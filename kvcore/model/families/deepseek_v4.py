"""DeepSeek-V4: a window of latents in every layer, compressed latents and an indexer in most, and hyper-connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import CacheState, CompressedLatent, LatentWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind
from kvcore.model.rope import read_ropes

LATENT_BYTES: Final = 584
"""One packed latent: 448 fp8, 64 bf16 rotated, 8 scales. Source: vllm/models/deepseek_v4/attention.py (0.32)."""
INDEX_BYTES: Final = 132
"""One indexer key: 128 fp8 and a float32 scale. Source: vllm/models/deepseek_v4/attention.py (0.32)."""
PAGE_ALIGNMENT: Final = 576
WINDOW_BLOCK: Final = 64
"""Source: vllm/v1/attention/backends/mla/sparse_swa.py:DeepseekV4SWACache (0.32)."""
COMPRESSOR_BLOCKS: Final[Mapping[int, int]] = {4: 4, 128: 8}
"""Block size of a compressor's states by its ratio. Source: vllm/models/deepseek_v4/compressor.py (0.32)."""
OVERLAPPING_RATIO: Final = 4
"""Compressors of this ratio look at two windows, and their layers have an indexer."""
SINKS: Final = 64
"""Attention sinks are padded to the heads of the kernel. Source: vllm/models/deepseek_v4/nvidia/flashmla.py (0.32)."""
FLOAT32_BYTES: Final = 4


def read(config: ModelConfig) -> arch.Architecture:
    """DeepSeek-V4.

    Source: vllm/models/deepseek_v4/nvidia/model.py, attention.py, compressor.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    heads = blocks.Heads(
        hidden_size=hidden,
        num_heads=section.integer("num_attention_heads"),
        num_kv_heads=1,
        head_dim=section.integer("head_dim"),
    )
    count = section.layers()
    ratios = section.integers("compress_ratios") or ()
    if len(ratios) < count or set(ratios) - {0, 1, *COMPRESSOR_BLOCKS}:
        raise section.contradicting("compress_ratios", f"{len(ratios)} ratios for {count} layers")
    moe = read_moe(EXPERTS, section)
    hashed = section.integer("num_hash_layers", 0, minimum=0)
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    built = blocks.decoder(
        config,
        heads=heads,
        layers=by_kind(
            ((ratio, index < hashed) for index, ratio in enumerate(ratios[:count])),
            lambda kind: read_layer(section, heads, moe, kind[0], is_hashed=kind[1]),
        ),
        intermediate_size=moe.moe_intermediate_size,
        first=(blocks.embedding(section, "embed"),),
        last=(
            blocks.norm("norm", hidden),
            arch.VocabEmbedding(
                name="head", num_embeddings=section.integer("vocab_size"), embedding_dim=hidden
            ),
        ),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=rotary_tables(section),
        layer_prefix="layers",
        moe=moe,
    )
    draft = draft_layer(section, heads, moe)
    return replace(
        built,
        is_mla=True,
        draft_layers=(draft,) * drafts,
        draft_steps=drafts,
        every=hyper_head(hidden, section.integer("hc_mult"), "hc_head"),
    )


EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts",
    shared_count_key="n_shared_experts",
    prefix="ffn",
    correction="gate.bias",
    shared_whole=True,
)


def rotary_tables(section: Section) -> tuple[arch.RotaryTable, ...]:
    """Float32 tables: a plain one for windows, a scaled one for compressed latents."""
    positions = section.integer("max_position_embeddings")
    width = section.integer("qk_rope_head_dim")
    rows = (positions, read_ropes(section)[0].table_positions(positions))
    return tuple(arch.RotaryTable(max_positions=count, rotary_dim=width, dtype="float32") for count in rows)


def read_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, ratio: int, *, is_hashed: bool
) -> arch.Layer:
    """One layer: attention with its compressor and indexer, experts, hyper-connections."""
    hidden = heads.hidden_size
    modules: list[arch.Module] = [
        *latent_attention(section, heads),
        *experts_of(section, hidden, moe, is_hashed=is_hashed),
        *blocks.norms(hidden, "attn_norm", "ffn_norm"),
        *hyper_connections(hidden, section.integer("hc_mult")),
    ]
    window = section.integer("sliding_window")
    caches: list[CacheState] = [
        LatentWindow(
            sliding_window=window,
            state_bytes=LATENT_BYTES,
            page_alignment=PAGE_ALIGNMENT,
            block_size=WINDOW_BLOCK,
        )
    ]
    if ratio > 1:
        modules += compressor("attn.compressor", hidden, heads.head_dim, ratio)
        caches += [
            CompressedLatent(tokens_per_state=ratio, state_bytes=LATENT_BYTES, page_alignment=PAGE_ALIGNMENT),
            compressor_state(heads.head_dim, ratio),
        ]
    if ratio == OVERLAPPING_RATIO:
        index_dim = section.integer("index_head_dim")
        index_heads = section.integer("index_n_heads")
        modules += [
            blocks.replicated("attn.indexer.wq_b", section.integer("q_lora_rank"), index_dim * index_heads),
            blocks.replicated("attn.indexer.weights_proj", hidden, index_heads, quantizable=False),
            *compressor("attn.indexer.compressor", hidden, index_dim, ratio),
        ]
        caches += [
            CompressedLatent(tokens_per_state=ratio, state_bytes=INDEX_BYTES, page_alignment=PAGE_ALIGNMENT),
            compressor_state(index_dim, ratio),
        ]
    return arch.Layer(modules=tuple(modules), caches=tuple(caches))


def latent_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Latent projections, and an output projection in groups."""
    hidden, rank = heads.hidden_size, section.integer("q_lora_rank")
    groups, out_rank = section.integer("o_groups"), section.integer("o_lora_rank")
    width = heads.num_heads * heads.head_dim
    if width % groups:
        raise section.contradicting("o_groups", f"{width} is not divisible by {groups} groups")
    return (
        arch.Linear(
            name="attn.fused_wqa_wkv",
            in_features=hidden,
            outputs=(arch.Output(units=rank), arch.Output(units=heads.head_dim)),
            parts=("attn.wq_a", "attn.wkv"),
        ),
        blocks.norm("attn.q_norm", rank),
        blocks.norm("attn.kv_norm", heads.head_dim),
        arch.Linear(
            name="attn.wq_b",
            in_features=rank,
            outputs=(arch.Output(units=heads.num_heads, width=heads.head_dim),),
            split=arch.Split.COLUMN,
        ),
        blocks.column("attn.wo_a", width // groups, groups * out_rank),
        blocks.row("attn.wo_b", groups * out_rank, hidden),
        arch.Parameter(name="attn.attn_sink", replicated=SINKS, dtype="float32"),
    )


def experts_of(
    section: Section, hidden: int, moe: arch.MixtureOfExperts, *, is_hashed: bool
) -> tuple[arch.Module, ...]:
    """Router and experts; the first layers choose experts by a table of token ids."""
    is_corrected = not is_hashed and section.string("topk_method", "") == "noaux_tc"
    modules = expert_modules(replace(EXPERTS, correction_bias=is_corrected), section, hidden, moe)
    if not is_hashed:
        return modules
    size = section.integer("vocab_size") * moe.top_k
    table = arch.Parameter(name="ffn.gate.tid2eid", replicated=size, dtype="int32")
    return (*modules[:2], table, *modules[2:])


def hyper_connections(hidden: int, streams: int) -> tuple[arch.Parameter, ...]:
    """What mixes the residual streams before attention and before the experts."""
    mixes = (2 + streams) * streams
    size = mixes * streams * hidden + mixes + 3
    return tuple(
        arch.Parameter(name=f"hc_{part}", replicated=size, dtype="float32") for part in ("attn", "ffn")
    )


def hyper_head(hidden: int, streams: int, name: str) -> tuple[arch.Parameter, ...]:
    """What mixes the residual streams before the head."""
    return (arch.Parameter(name=name, replicated=streams * streams * hidden + streams + 1, dtype="float32"),)


def compressor(prefix: str, hidden: int, head_dim: int, ratio: int) -> tuple[arch.Module, ...]:
    """Projections to states and scores, positions and a norm.

    Source: vllm/models/deepseek_v4/compressor.py:DeepseekCompressor (0.32).
    """
    width = overlap(ratio) * head_dim
    return (
        arch.Parameter(name=f"{prefix}.ape", replicated=ratio * width, dtype="float32"),
        blocks.replicated(f"{prefix}.fused_wkv_wgate", hidden, 2 * width, quantizable=False),
        blocks.norm(f"{prefix}.norm", head_dim),
    )


def compressor_state(head_dim: int, ratio: int) -> LatentWindow:
    """The float32 states and scores that wait to be compressed."""
    return LatentWindow(
        sliding_window=overlap(ratio) * ratio,
        state_bytes=2 * overlap(ratio) * head_dim * FLOAT32_BYTES,
        page_alignment=PAGE_ALIGNMENT,
        block_size=COMPRESSOR_BLOCKS[ratio],
    )


def overlap(ratio: int) -> int:
    """How many windows a compressor looks at."""
    return 2 if ratio == OVERLAPPING_RATIO else 1


def draft_layer(section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts) -> arch.Layer:
    """A multi-token-prediction layer, without compression.

    Source: vllm/models/deepseek_v4/nvidia/mtp.py (0.32).
    """
    hidden = heads.hidden_size
    body = read_layer(section, heads, moe, 0, is_hashed=False)
    return replace(
        body,
        modules=(
            *blocks.norms(hidden, "enorm", "hnorm", "shared_head.norm"),
            blocks.replicated("e_proj", hidden, hidden),
            blocks.replicated("h_proj", hidden, hidden),
            *hyper_head(hidden, section.integer("hc_mult"), "hc_head"),
            *body.modules,
        ),
    )


READERS: Final = blocks.named(
    (read, "DeepseekV4ForCausalLM", "deepseek_v4"),
)
