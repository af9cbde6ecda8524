"""Step 5, whose class the stand-ins cannot build: its modules by arithmetic, what its layers keep by its own rules."""

from __future__ import annotations

from typing import Any

from kvcore.model import architecture as arch
from kvcore.model.caches import FullAttention, PooledKeys, SlidingWindow, TokenRing
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture

CONFIG: dict[str, Any] = {
    "architectures": ["Step5ForCausalLM"],
    "model_type": "step5",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 32,
    "num_attention_groups": 4,
    "head_dim": 192,
    "num_hidden_layers": 3,
    "max_position_embeddings": 131_072,
    "moe_intermediate_size": 512,
    "moe_num_experts": 16,
    "moe_top_k": 4,
    "share_expert_dim": 640,
    "moe_layers_enum": "1,2",
    "use_head_wise_attn_gate": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 512,
    "swa_num_attention_heads": 40,
    "norm_dtype": "fp32",
    "tie_word_embeddings": False,
    "sparse_config": {"sparse_indexer_num_heads": 16, "num_provider_groups": 4},
}


def layers_of(**more: Any) -> tuple[arch.Layer, ...]:
    return read_architecture(ModelConfig.from_mapping(CONFIG | more)).layers


def elements(layer: arch.Layer) -> int:
    return sum(map(arch.elements, layer.modules))


MLP = 3 * 1024 * 3072
EXPERTS = 16 * 1024 + 16 + 16 * 3 * 1024 * 512 + 3 * 1024 * 640
NORMS = 2 * 1024 + 2 * 192


def test_layers_with_windows_have_their_own_number_of_heads() -> None:
    attention = (40 + 2 * 4) * 192 * 1024 + 40 * 192 * 1024 + 40 * 1024
    dense, sparse, _ = layers_of()
    assert elements(dense) == attention + MLP + NORMS
    assert elements(sparse) == attention + EXPERTS + NORMS
    assert [type(cache) for cache in dense.caches] == [SlidingWindow]


def test_a_layer_that_picks_has_an_indexer_in_its_projection() -> None:
    attention = (32 + 2 * 4) * 192 * 1024 + 32 * 192 * 1024
    indexer = (16 * 256 + 2 * 256 + 32) * 1024 + 16 * 1024 + 32 + 256 + 2 * 256
    layer = layers_of()[2]
    assert elements(layer) == attention + indexer + EXPERTS + NORMS
    kept, keys, ring = layer.caches
    assert isinstance(kept, FullAttention)
    assert keys == PooledKeys(tokens_per_state=8, key_bytes=256)
    assert isinstance(ring, TokenRing)
    assert ring.fills_page_of == kept
