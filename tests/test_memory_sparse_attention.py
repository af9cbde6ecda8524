"""What sparse latent attention allocates at load, against published starts and the arithmetic of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore import catalogue
from kvcore.base.units import GIB, MIB
from kvcore.memory.sparse_attention import (
    choice_bytes,
    gathered_bytes,
    reserved_bytes,
    stream_attention_bytes,
)
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request


def config_of(model: str) -> dict[str, Any]:
    bundled = catalogue.bundled_model(model)
    assert bundled is not None
    return dict(bundled.config.root.raw)


def glm(version: str = "0.28.0", model: str = "", card: str = "H200-141GB", **fields: Any) -> Plan:
    """GLM-5.2 in blocks of fp8, whose config GLM-5.3-FP8 has but for the version of transformers, on eight cards."""
    quantized = config_of("zai-org/GLM-5.1-FP8")
    config = quantized
    if not model:
        config = config_of("zai-org/GLM-5.2") | {"quantization_config": quantized["quantization_config"]}
    request = {"config": config, "accelerator": card, "engine_version": version}
    return plan(scenario_from_request({**request, "tensor_parallel_size": 8, **fields}))


class TestPublished:
    @pytest.mark.parametrize(
        ("fields", "gib"),
        [
            ({"kv_cache_dtype": "fp8"}, 94.46),  # GLM-5.3-FP8, 8 × H200, the model's own length
            (
                {
                    "version": "0.26.0",
                    "kv_cache_dtype": "fp8",
                    "max_model_len": 131_072,
                    "max_num_batched_tokens": 32_768,
                },
                89.93,  # GLM-5.2-FP8, 8 × H20
            ),
            ({"version": "0.19.1", "model": "zai-org/GLM-5.1-FP8"}, 89.34),  # 8 × H200
        ],
    )
    def test_model_loading_took(self, fields: dict[str, Any], gib: float) -> None:
        assert glm(**fields).weights.total / GIB == pytest.approx(gib, rel=0.0015)


def of(found: Plan) -> tuple[int, int]:
    architecture, parallel, resolved = found.architecture, found.scenario.parallel, found.resolved
    return (
        choice_bytes(architecture, parallel, resolved, 0),
        reserved_bytes(architecture, parallel, resolved),
    )


class TestArithmetic:
    def test_the_choice_is_a_row_of_2048_tokens_for_each_batched_token(self) -> None:
        choice, _ = of(glm(max_num_batched_tokens=8192))
        assert choice == 8192 * 2048 * 4

    def test_each_group_of_layers_keeps_a_copy_since_0_30(self) -> None:
        before, _ = of(glm("0.29.0", max_num_batched_tokens=8192, max_num_seqs=1024))
        since, _ = of(glm("0.30.0", max_num_batched_tokens=8192, max_num_seqs=1024))
        indexed = 21  # layers 0, 1, 2, then every fourth of 78
        assert since - before == pytest.approx(indexed * 1025 * 2048 * 4, rel=0.25)
        assert since - before >= indexed * 1025 * 2048 * 4

    @pytest.mark.parametrize(
        ("version", "length", "times"),
        [("0.17.1", 131_072, 5), ("0.32.0", 131_072, 5), ("0.32.0", 1_048_576, 2)],
    )
    def test_a_packed_cache_reserves_a_part_unpacked(self, version: str, length: int, times: int) -> None:
        found = glm(version, kv_cache_dtype="fp8", max_model_len=length, max_num_batched_tokens=8192)
        _, reserved = of(found)
        queries = 0 if version < "0.18" else 8192 * 8 * 576 * 2
        if version == "0.32.0":
            queries += 8192 * (64 * (576 + 512) + 8 * 512) * 2
        assert reserved == pytest.approx(times * length * 576 * 2 + queries, abs=4 * MIB)

    def test_queries_alone_for_a_cache_of_sixteen_bits(self) -> None:
        _, reserved = of(glm("0.28.0", kv_cache_dtype="bfloat16", max_num_batched_tokens=8192))
        assert reserved == 8192 * 8 * 576 * 2

    def test_other_kernels_reserve_nothing(self) -> None:
        assert of(glm(card="B200-180GB", kv_cache_dtype="fp8"))[1] == 0

    def test_a_model_without_an_indexer_has_none(self) -> None:
        request = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": 8}
        assert of(plan(scenario_from_request(request))) == (0, 0)


@pytest.mark.parametrize(("version", "mib"), [("0.18.0", 0), ("0.19.0", 512), ("0.33.0", 512)])
def test_the_profile_run_stands_in_for_the_logits_of_the_indexer(version: str, mib: int) -> None:
    """2,048 tokens of three vectors of 6,144 elements, the shared experts' output, an input in 8 bits, and 3 × 256."""
    found = glm(version, max_num_batched_tokens=2048, kv_cache_dtype="fp8").memory
    assert found is not None
    layers = next(part for part in found.activations.inputs if part.name == "layers")
    assert layers.value - 2048 * 2 * (4.5 * 6144 + 3 * 256) == mib * MIB


def test_a_layer_of_deepseek_v4_keeps_its_streams_and_padded_queries() -> None:
    """16,384 tokens, TP 2: five vectors of 4,096, 32 heads of 512, and twice the 64 that FlashMLA takes. Four prefills
    gather 30,000 / 4 + 128 + 16,384 latents."""
    found = plan(
        scenario_from_request(
            {"model": "deepseek-ai/DeepSeek-V4-Flash", "accelerator": "H200-141GB", "engine_version": "0.22.0",
             "tensor_parallel_size": 2, "max_model_len": 30_000, "max_num_batched_tokens": 16_384}
        )
    )  # fmt: skip
    parallel, resolved = found.scenario.parallel, found.resolved
    kept = 16_384 * 2 * (5 * 4096 + (32 + 2 * 64) * 512)
    assert stream_attention_bytes(found.architecture, parallel, resolved) == kept == 3.125 * GIB
    assert gathered_bytes(found.architecture, resolved) == 4 * 2 * 512 * (7500 + 128 + 16_384)
    assert found.memory is not None
    assert next(part.value for part in found.memory.activations.inputs if part.name == "layers") == kept
    llama = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H200-141GB"}))
    assert not stream_attention_bytes(llama.architecture, parallel, llama.resolved)
    assert not gathered_bytes(llama.architecture, llama.resolved)
