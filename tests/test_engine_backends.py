"""Attention backends, their blocks and the stored dtype, by version and card."""

import pytest
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.engines.vllm.backends import backend_row
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import LLAMA_8B, resolved_of


@pytest.mark.parametrize(
    ("version", "capability", "attention", "is_fp8", "backend", "block_size"),
    [
        ("0.32.0", 90, "plain", False, "FLASH_ATTN", 16),
        ("0.32.0", 80, "plain", True, "FLASHINFER", 16),
        ("0.32.0", 100, "plain", False, "FLASHINFER", 16),
        ("0.32.0", 75, "plain", False, "TRITON_ATTN", 16),
        ("0.11.0", 75, "plain", False, "FLEX_ATTENTION", 16),
        ("0.8.5", 75, "plain", False, "XFORMERS", 16),
        ("0.17.1", 90, "mla", False, "FLASHMLA", 64),
        ("0.18.1", 90, "mla", False, "FLASH_ATTN_MLA", 16),
        ("0.18.1", 90, "mla", True, "FLASHMLA", 64),
        ("0.32.0", 80, "mla", False, "TRITON_MLA", 16),
        ("0.14.1", 100, "mla", False, "CUTLASS_MLA", 128),
        ("0.15.1", 100, "mla", False, "FLASHINFER_MLA", 64),
        ("0.11.0", 90, "sparse", False, "FLASHMLA_SPARSE", 64),
        ("0.32.0", 90, "sparse", False, "FLASH_ATTN_MLA_SPARSE", 64),
        ("0.32.0", 90, "sparse", True, "FLASHMLA_SPARSE", 64),
        ("0.32.0", 100, "sparse", True, "FLASHINFER_MLA_SPARSE", 64),
        ("0.32.0", 90, "compressed", False, "FLASHMLA_SPARSE", 256),
        ("0.32.0", 90, "turboquant", False, "TURBOQUANT", 32),
    ],
)
def test_the_first_matching_row_is_taken(
    version: str, capability: int, attention: str, is_fp8: bool, backend: str, block_size: int
) -> None:
    row = backend_row(Version(version), capability, attention, is_fp8)
    assert (row.backend, row.block_size) == (backend, block_size)


def test_an_asked_block_size_is_kept_unless_the_backend_forces_its_own() -> None:
    assert resolved_of(block_size=32).block_size == 32
    mla = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
           "intermediate_size": 10944, "num_hidden_layers": 27, "num_attention_heads": 16, "vocab_size": 102400,
           "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
           "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
           "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "max_position_embeddings": 163840,
           "torch_dtype": "bfloat16"}  # fmt: skip
    assert resolved_of(mla, block_size=32, engine_version="0.11.0").block_size == 64
    assert resolved_of(mla, block_size=32, engine_version="0.32.0").block_size == 32


@pytest.mark.parametrize(
    ("version", "accelerator", "asked", "stored"),
    [
        ("0.11.0", "H200-141GB", "auto", "fp8_ds_mla"),
        ("0.16.0", "H200-141GB", "auto", "bfloat16"),
        ("0.16.0", "B200-180GB", "fp8", "fp8_ds_mla"),
        ("0.32.0", "H200-141GB", "auto", "bfloat16"),
        ("0.32.0", "H200-141GB", "fp8", "fp8_ds_mla"),
        ("0.32.0", "B200-180GB", "fp8", "fp8_e4m3"),
        ("0.32.0", "B200-180GB", "auto", "bfloat16"),
    ],
)
def test_sparse_models_store_fp8_in_their_own_layout(
    version: str, accelerator: str, asked: str, stored: str
) -> None:
    config = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168,
              "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280,
              "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
              "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
              "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "max_position_embeddings": 163840,
              "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "torch_dtype": "bfloat16"}  # fmt: skip
    resolved = resolved_of(config, engine_version=version, accelerator=accelerator, kv_cache_dtype=asked)
    assert resolved.kv_cache_dtype == stored
    assert resolved.block_size == 64


def test_a_declared_cache_dtype_is_taken_and_overridden() -> None:
    config = {**LLAMA_8B, "quantization_config": {
        "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}},
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}  # fmt: skip
    assert resolved_of(config).kv_cache_dtype == "fp8_e4m3"
    assert resolved_of(config, kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("model", "accelerator", "code"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "MI355X-288GB", ""),
        ("deepseek-ai/DeepSeek-V3.1", "MI300X-192GB", ""),
        ("deepseek-ai/DeepSeek-V3.1", "H200-141GB", "block-size-not-in-kernels"),
        ("Qwen/Qwen3-8B", "MI300X-192GB", "block-size-not-in-kernels"),
    ],
)
def test_blocks_of_one_token_are_for_latent_attention_on_rocm(
    model: str, accelerator: str, code: str
) -> None:
    asked = {"model": model, "accelerator": accelerator, "block_size": 1, "tensor_parallel_size": 8}
    if not code:
        assert plan(scenario_from_request(asked)).resolved.block_size == 1
        return
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario_from_request(asked))
    assert refused.value.code == code


def test_minimax_m3_may_keep_the_keys_that_pick_blocks_in_fp8() -> None:
    """57 of 60 layers have such keys, 128 elements a token on each rank beside 2 × 128 × kv_heads / 8 of fp8."""
    asked = {
        "model": "nvidia/MiniMax-M3-NVFP4", "accelerator": "B200-180GB", "tensor_parallel_size": 4,
        "kv_cache_dtype": "fp8", "max_model_len": 8192, "language_model_only": True,
    }  # fmt: skip
    wide, narrow = (
        plan(scenario_from_request({**asked, "indexer_kv_dtype": dtype})).cache for dtype in ("bf16", "fp8")
    )
    assert wide is not None
    assert narrow is not None
    assert wide.bytes_per_token - narrow.bytes_per_token == 57 * 128
    assert narrow.tokens > wide.tokens


@pytest.mark.parametrize(
    ("model", "dtype", "version", "code"),
    [
        ("nvidia/MiniMax-M3-NVFP4", "nvfp4", "0.33.0", "indexer-kv-unsupported"),
        ("deepseek-ai/DeepSeek-V3.2", "bf16", "0.33.0", "indexer-kv-unsupported"),
        ("nvidia/MiniMax-M3-NVFP4", "fp8", "0.23.0", "flag-not-in-release"),
    ],
)
def test_an_indexer_takes_its_own_dtypes(model: str, dtype: str, version: str, code: str) -> None:
    asked = {
        "model": model,
        "accelerator": "B200-180GB",
        "tensor_parallel_size": 8,
        "engine_version": version,
    }
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario_from_request({**asked, "indexer_kv_dtype": dtype}))
    assert refused.value.code == code
