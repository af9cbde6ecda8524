"""Step 5: attention to picked regions of tokens between layers with windows, experts with a float32 router."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import FullAttention, PooledKeys, TokenRing
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts.encoder import Encoder, with_encoders
from kvcore.model.parts.experts import MAX_EXPERTS
from kvcore.model.parts.mixers import wide_column
from kvcore.model.parts.pattern import by_kind

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
REGION: Final = 8
"""Tokens of one summary. Source: vllm/models/step5/nvidia/sparse_summary_cache.py (0.33)."""
PROXY: Final = 256
"""Elements of an indexer's head, a byte each in a summary. Source: vllm/models/step5/nvidia/config.py (0.33)."""
NORMS: Final = {"bf16": "", "bfloat16": "", "fp32": "float32", "float32": "float32"}


def read(config: ModelConfig) -> arch.Architecture:
    """Step 5, alone or behind Step's image encoder.

    Source: vllm/models/step5/nvidia/model.py, config.py, csa_tail_ring.py, sparse_summary_cache.py,
    vllm/transformers_utils/configs/step5.py (0.33).
    """
    section = config.language
    heads, count = blocks.read_heads(section, "num_attention_groups"), section.layers()
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    named = section.words("layer_types", (SLIDING, FULL)) or ()
    usual = ((SLIDING, FULL)[at % 2] for at in range(count))
    kinds = tuple(named[:count]) if len(named) >= count else tuple(usual)
    indexer = section.section("sparse_config")
    if not indexer.boolean("enabled", True):
        raise indexer.invalid("enabled", False, "expected true: a model without an indexer is not read")
    moe = read_experts(section)
    sparse = sparse_layers(section, count)
    norm = NORMS.get(section.string("norm_dtype", "bf16").lower(), "float32")
    around = norms(norm, hidden, *blocks.TWO_NORMS)
    bodies: dict[bool, tuple[arch.Module, ...]] = {
        True: experts(hidden, moe),
        False: blocks.gated_mlp(hidden, inner),
    }

    def layer(kind: str, has_experts: bool) -> arch.Layer:
        mixer = windowed(section, heads, norm) if kind == SLIDING else picking(indexer, heads, norm)
        return replace(mixer, modules=(*mixer.modules, *around, *bodies[has_experts]))

    tied = section.boolean("tie_word_embeddings", False)
    last: list[arch.Module] = [*norms(norm, hidden, "model.norm")]
    if not tied:
        last.append(blocks.head(section))
    built = blocks.decoder(
        config,
        section=section,
        heads=heads,
        layers=by_kind(zip(kinds, sparse, strict=True), lambda shape: layer(*shape)),
        intermediate_size=inner,
        last=tuple(last),
        tied=tied,
        moe=moe,
    )
    if config.root.optional_section("vision_config") is None:
        return built
    seen = image_encoders.step_vision(config.root, hidden)
    return with_encoders(built, seen, "language_model.model.layers")


def norms(dtype: str, size: int, *names: str) -> tuple[arch.Parameter, ...]:
    """Norms in a dtype that the config names."""
    return tuple(replace(norm, dtype=dtype) for norm in blocks.norms(size, *names))


def read_experts(section: Section) -> arch.MixtureOfExperts:
    """The sizes of the experts."""
    top_k = section.integer("moe_top_k", maximum=MAX_EXPERTS)
    width = section.integer("moe_intermediate_size")
    return arch.MixtureOfExperts(
        num_experts=section.integer("moe_num_experts", maximum=MAX_EXPERTS),
        top_k=top_k,
        moe_intermediate_size=width,
        shared_intermediate_size=section.integer("share_expert_dim", width * top_k),
    )


def sparse_layers(section: Section, count: int) -> tuple[bool, ...]:
    """Layers with experts: those that the config lists, else all but the first."""
    listed = section.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = [part.strip() for part in listed.split(",") if part.strip()]
        if not all(part.isdigit() for part in numbers):
            raise section.invalid("moe_layers_enum", listed, "expected layer numbers with commas between")
        chosen = frozenset(map(int, numbers))
    else:
        own = section.integers("moe_layers_enum") or section.integers("moe_layer_list")
        chosen = frozenset(range(1, count) if own is None else own)
    return tuple(at in chosen for at in range(count))


def experts(hidden: int, moe: arch.MixtureOfExperts) -> tuple[arch.Module, ...]:
    """Router and its bias in float32, routed and shared experts."""
    return (
        blocks.replicated("moe.gate", hidden, moe.num_experts, quantizable=False, dtype="float32"),
        arch.Parameter(name="moe.router_bias", replicated=moe.num_experts, dtype="float32"),
        arch.Experts(
            name="moe.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
        *blocks.with_expert_ranks(blocks.gated_mlp(hidden, moe.shared_intermediate_size, "share_expert")),
    )


def windowed(section: Section, heads: blocks.Heads, norm: str) -> arch.Layer:
    """Attention in a window, with heads of its own number, and a gate a head where the config has one."""
    own = replace(heads, num_heads=section.integer("swa_num_attention_heads", heads.num_heads))
    modules: list[arch.Module] = [*blocks.attention(own)]
    modules += norms(norm, own.head_dim, "self_attn.q_norm", "self_attn.k_norm")
    if section.boolean("use_head_wise_attn_gate", False):
        modules.append(blocks.column("self_attn.g_proj", own.hidden_size, own.num_heads))
    cache = blocks.cache_of(own, section.integer("sliding_window"))
    return arch.Layer(modules=tuple(modules), caches=(cache,))


def picking(indexer: Section, heads: blocks.Heads, norm: str) -> arch.Layer:
    """Attention to the regions that an indexer picks; its queries are divided like KV heads, its keys are whole.

    It keeps a summary a region, and a ring of the last tokens' keys as large as a page of keys and values.
    """
    count = indexer.integer("sparse_indexer_num_heads", 16)
    groups = indexer.integer("index_tp_size", indexer.integer("num_provider_groups", 4))
    if count % groups:
        raise indexer.contradicting("sparse_indexer_num_heads", f"{count} heads in {groups} groups")
    fused, out = blocks.attention(heads)
    keys = arch.Output(units=1, width=PROXY, replicable=True)
    queries = arch.Output(units=groups, width=count // groups * PROXY, replicable=True)
    gate = arch.Output(units=heads.num_heads)
    parts = ("sparse_indexer_q", "sparse_indexer_k", "sparse_indexer_z", "g_proj")
    fused = replace(
        fused,
        outputs=(*fused.outputs, queries, keys, keys, gate),
        parts=(*fused.parts, *(f"self_attn.{part}" for part in parts)),
    )
    weights = arch.Output(units=groups, width=count // groups, replicable=True)
    kept = FullAttention(
        num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=heads.head_dim
    )
    return arch.Layer(
        modules=(
            fused,
            out,
            replace(
                wide_column("self_attn.sparse_indexer_w", heads.hidden_size, (weights,)), quantizable=False
            ),
            arch.Parameter(name="self_attn.ssmax_s", replicated=heads.num_heads, dtype="float32"),
            *norms(norm, heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
            blocks.norm("self_attn.sparse_indexer_q_norm", PROXY),
            blocks.norm("self_attn.sparse_indexer_k_norm", PROXY, bias=True),
        ),
        caches=(
            kept,
            PooledKeys(tokens_per_state=REGION, key_bytes=PROXY),
            TokenRing(tokens_per_group=REGION, row_bytes=4 * PROXY, fills_page_of=kept),
        ),
    )


def step_vl(config: ModelConfig, text: int) -> Encoder:
    """Step3-VL with the encoder that Step 3.7 has.

    Source: vllm/model_executor/models/step_vl.py:StepVLForConditionalGeneration (0.33).
    """
    return image_encoders.step_vision(config.root, text)


READERS: Final = blocks.named(
    (read, "Step5ForCausalLM Step5ForConditionalGeneration step5 step5_vl"),
    (behind_encoders(step_vl), "StepVLForConditionalGeneration"),
)
