"""What loading puts on a rank: adapter limits, offloaded parameters, encoders that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError
from kvcore.base.quantity import Grade
from kvcore.base.units import GIB, MIB, gib
from kvcore.engines.registry import find_engine
from kvcore.memory.loaded import loaded_quantity, offloaded_tensors
from kvcore.memory.lora import Slots, lora_bytes
from kvcore.memory.weights import WeightBytes
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import Quantization
from kvcore.planning import plan
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import LLAMA_8B

VLLM = find_engine("vllm")

PLAIN = Quantization()
CONFIG = ModelConfig.from_mapping(LLAMA_8B)
LLAMA = read_architecture(CONFIG)


def loaded(model: str, **fields: Any) -> WeightBytes:
    return plan(scenario_from_request({"model": model, "accelerator": "H100-80GB", **fields})).weights


def slots_bytes(
    config: dict[str, Any] = LLAMA_8B,
    version: str = "0.32.0",
    max_loras: int = 1,
    max_lora_rank: int = 16,
    ranks: int = 1,
    fully_sharded_loras: bool = False,
) -> int:
    model = ModelConfig.from_mapping(config)
    slots = Slots(max_loras=max_loras, max_lora_rank=max_lora_rank, fully_sharded_loras=fully_sharded_loras)
    parallel = Parallel(tensor_parallel_size=ranks)
    return lora_bytes(
        model, read_architecture(model), PLAIN, parallel, VLLM, Version(version), "bfloat16", 0, slots
    )


class TestAdapters:
    @pytest.mark.parametrize(
        ("flags", "mib"),
        [
            ({}, 88.08),
            ({"ranks": 2}, 62.08),
            ({"ranks": 2, "max_loras": 4, "max_lora_rank": 64, "fully_sharded_loras": True}, 769.25),
        ],
    )
    def test_llama_8b(self, flags: dict[str, Any], mib: float) -> None:
        assert slots_bytes(**flags) / MIB == pytest.approx(mib, abs=0.01)

    @given(st.integers(1, 16), st.integers(1, 256))
    def test_they_grow_with_their_number_and_their_rank(self, count: int, rank: int) -> None:
        assert slots_bytes(max_loras=count, max_lora_rank=rank) == count * rank * slots_bytes(max_lora_rank=1)

    @pytest.mark.parametrize(
        ("version", "vocabulary", "refused"),
        [
            ("0.11.0", 257_024, False),
            ("0.11.0", 257_025, True),
            ("0.32.0", 258_048, False),
            ("0.32.0", 258_049, True),
        ],
    )
    def test_the_largest_vocabulary(self, version: str, vocabulary: int, refused: bool) -> None:
        config = {**LLAMA_8B, "vocab_size": vocabulary}
        if not refused:
            assert slots_bytes(config, version) > 0
            return
        with pytest.raises(EngineRefusalError) as error:
            slots_bytes(config, version)
        assert error.value.code == "lora-vocabulary"
        assert "When using LoRA, vocab size must be <=" in str(error.value)

    def test_a_model_whose_head_has_no_adapters_may_have_any_vocabulary(self) -> None:
        config = {
            **LLAMA_8B,
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": 300_000,
        }
        hidden, mlp, kv = 4096, 14336, 1024
        attention = 3 * hidden + hidden + 2 * kv + 2 * hidden
        assert slots_bytes(config) == 16 * 2 * 32 * (attention + 2 * hidden + 2 * mlp + mlp + hidden)

    def test_a_model_without_adapters_is_refused(self) -> None:
        with pytest.raises(EngineRefusalError) as error:
            loaded("tiiuae/falcon-7b-instruct", enable_lora=True)
        assert str(error.value) == "FalconForCausalLM does not support LoRA yet."

    def test_until_0_11_adapters_could_add_256_tokens(self) -> None:
        """Rows of embedding and lm_head, in the slots and in the model; the padded vocabulary is 128512."""
        rows = 256 * 4096
        slots = 16 * (256 + 256) + 2 * rows
        assert slots_bytes(version="0.11.0") - slots_bytes() == 2 * (slots + 2 * rows)

    def test_experts_have_slots_since_0_11_3(self) -> None:
        model = "Qwen/Qwen3-30B-A3B-FP8"
        older = loaded(model, enable_lora=True, engine_version="0.11.0").adapters
        newer = loaded(model, enable_lora=True, engine_version="0.32.0").adapters
        assert newer - older > 48 * 128 * 16 * 2 * 3 * (2048 + 768) - MIB * 16


class TestOffloading:
    def test_an_rtx_3090_with_12_gib_of_llama_in_the_host(self) -> None:
        """Log of 0.17.1: "Model loading took 2.91 GiB" with --cpu-offload-gb 12, of 14.99."""
        weights = loaded("meta-llama/Llama-3.1-8B-Instruct", cpu_offload_gb=12, engine_version="0.17.1")
        assert gib(weights.total) == pytest.approx(2.91, abs=0.005)
        whole_layers = 29 * (48 + 32 + 224 + 112 + 2 * 4096 * 2 / MIB) * MIB
        assert weights.offloaded == whole_layers + (48 + 32 + 224) * MIB

    def test_embedding_head_and_norm_stay(self) -> None:
        moved = sum(
            offloaded_tensors(LLAMA, PLAIN, Parallel(), VLLM, Version("0.32.0"), "bfloat16", 0, 1 << 60)
        )
        weights = loaded("meta-llama/Llama-3.1-8B-Instruct", cpu_offload_gb=1000)
        assert weights.offloaded == moved == 16_060_522_496 - 2 * (2 * 128256 * 4096 + 4096)

    @given(st.integers(1, 20 * GIB))
    def test_at_least_the_limit_and_at_most_one_parameter_more(self, limit: int) -> None:
        moved = sum(
            offloaded_tensors(LLAMA, PLAIN, Parallel(), VLLM, Version("0.32.0"), "bfloat16", 0, limit)
        )
        everything = 32 * (416 * MIB + 2 * 4096 * 2)
        assert min(limit, everything) <= moved < limit + 224 * MIB or moved == everything

    def test_a_rank_of_each_stage_offloads_its_own_layers(self) -> None:
        parallel = Parallel(pipeline_parallel_size=2)
        sizes = [
            sum(
                offloaded_tensors(LLAMA, PLAIN, parallel, VLLM, Version("0.32.0"), "bfloat16", stage, 1 << 60)
            )
            for stage in (0, 1)
        ]
        assert sizes == [16 * (416 * MIB + 2 * 4096 * 2)] * 2


class TestEncoders:
    def test_no_images_no_tower(self) -> None:
        model = "google/gemma-3-27b-it"
        whole, text = loaded(model), loaded(model, limit_mm_per_prompt={"image": 0})
        assert gib(whole.parameters - text.parameters) == pytest.approx(0.8, abs=0.1)
        assert loaded(model, limit_mm_per_prompt={"image": 1}) == whole

    def test_a_model_that_takes_videos_needs_both_limits(self) -> None:
        model = "Qwen/Qwen2.5-VL-7B-Instruct"
        whole = loaded(model)
        assert loaded(model, limit_mm_per_prompt={"image": 0}) == whole
        assert loaded(model, limit_mm_per_prompt={"image": 0, "video": 0}).parameters < whole.parameters

    @pytest.mark.parametrize(
        ("limits", "parameters"),
        [
            ({"image": 0}, 10_208_595_008),
            ({"image": 0, "video": 0}, 9_871_506_496),
            ({"audio": 0}, 9_594_227_200),
            ({"image": 0, "video": 0, "audio": 0}, 9_257_138_688),
        ],
    )
    def test_ears_and_eyes_of_gemma_4_are_apart(self, limits: dict[str, int], parameters: int) -> None:
        """Parameters of the class that vLLM 0.32.0 builds of gemma-4-E2B-it, by tools/parity/oracle.py."""
        model = "google/gemma-4-E2B-it"
        weights = loaded(model, limit_mm_per_prompt=limits, engine_version="0.32.0")
        assert weights.parameters == parameters

    def test_older_versions_load_it_whatever_the_limits(self) -> None:
        model, old = "Qwen/Qwen2.5-VL-7B-Instruct", {"engine_version": "0.8.5"}
        limits = {"image": 0, "video": 0}
        assert loaded(model, limit_mm_per_prompt=limits, **old) == loaded(model, **old)

    def test_the_language_model_alone(self) -> None:
        """Log of 0.19: "Model loading took 64.69 GiB" for Qwen3.6-35B-A3B with --language-model-only."""
        weights = loaded("Qwen/Qwen3.6-35B-A3B", language_model_only=True, engine_version="0.19.0")
        assert gib(weights.total) == pytest.approx(64.69, abs=0.02)

    def test_no_limits_are_no_limits(self) -> None:
        assert loaded("google/gemma-3-27b-it", limit_mm_per_prompt={"audio": 0}) == loaded(
            "google/gemma-3-27b-it"
        )


def test_fully_sharded_adapters_come_from_the_flag() -> None:
    flags = {"tensor_parallel_size": 2, "enable_lora": True, "max_loras": 4, "max_lora_rank": 64}
    model = "meta-llama/Llama-3.1-8B-Instruct"
    assert loaded(model, **flags).adapters == 1_041_498_112
    assert loaded(model, fully_sharded_loras=True, **flags).adapters == 806_617_088


def test_the_quantity_names_only_what_is_there() -> None:
    plain = loaded_quantity(WeightBytes(parameters=5, buffers=2, loading=0))
    assert (plain.value, plain.formula) == (7, "parameters + buffers + loading")
    full = loaded_quantity(
        WeightBytes(
            parameters=50, buffers=2, loading=0, drafts=7, draft_is_assumed=True, adapters=3, offloaded=9
        )
    )
    assert full.value == 53
    assert full.formula == "parameters + buffers + loading + drafts + adapters − offloaded"
    assert {part.name: part.grade for part in full.inputs}["drafts"] is Grade.ASSUMED


class TestRotaryCopiesOfAscend:
    """vllm-ascend keeps the plain cos/sin table twice more from 0.13 on.

    "Loading model weights took" of published starts: Qwen3-14B 27.5376 GiB and Qwen3-0.6B 1.14 GiB on 0.23,
    Qwen3-8B 15.2684 GiB on 0.11.0rc3, one NPU each.
    """

    @pytest.mark.parametrize(
        ("model", "version", "printed_gib"),
        [
            ("Qwen/Qwen3-14B", "0.23.0", 27.5376),
            ("Qwen/Qwen3-0.6B", "0.23.0", 1.14),
            ("Qwen/Qwen3-8B", "0.11.0rc3", 15.2684),
        ],
    )
    def test_published_starts(self, model: str, version: str, printed_gib: float) -> None:
        weights = loaded(model, engine="vllm-ascend", engine_version=version, accelerator="Ascend-910B3-64GB")
        assert gib(weights.total) == pytest.approx(printed_gib, rel=0.0005)

    def test_two_tables_of_40960_positions_and_128_values(self) -> None:
        buffers = [
            loaded(
                "Qwen/Qwen3-8B", engine="vllm-ascend", engine_version=version, accelerator="Ascend-910B3-64GB"
            ).buffers
            for version in ("0.11.0", "0.13.0")
        ]
        assert buffers[1] - buffers[0] == 2 * 40960 * 128 * 2

    def test_scaled_tables_are_not_copied(self) -> None:
        """Llama 3.1 has a subclass of its own for its scaled table."""
        ours, theirs = (
            loaded(
                "meta-llama/Llama-3.1-8B-Instruct", engine=engine, engine_version="0.18.0", accelerator=card
            ).buffers
            for engine, card in (("vllm-ascend", "Ascend-910B3-64GB"), ("vllm", "H100-80GB"))
        )
        assert ours == theirs


class TestDeepstack:
    """Qwen3-VL-8B hands features of its encoder to three decoder layers of 4,096 bfloat16 numbers a token.

    Qwen3-VL-Embedding-2B on a T4 loads 4.3072 GiB with 8,192 batched tokens: 0.0938 of it are these buffers.
    """

    MODEL = "Qwen/Qwen3-VL-8B-Instruct"

    def test_a_buffer_of_the_batch_for_each_level(self) -> None:
        small, large = (loaded(self.MODEL, max_num_batched_tokens=tokens).loading for tokens in (8192, 32768))
        assert large - small == 3 * (32768 - 8192) * 4096 * 2

    def test_none_without_the_encoder(self) -> None:
        with_encoder = loaded(self.MODEL, max_num_batched_tokens=8192)
        without = loaded(self.MODEL, max_num_batched_tokens=8192, language_model_only=True)
        assert with_encoder.loading - without.loading >= 3 * 8192 * 4096 * 2


def codes(request: dict[str, Any]) -> set[str]:
    return {notice.code for notice in plan(scenario_from_request(request)).notices}


LLAMA_REQUEST = {"model": "meta-llama/Llama-3.1-8B-Instruct", "accelerator": "H100-80GB"}


def test_a_checkpoint_of_the_counted_size_says_nothing() -> None:
    assert "checkpoint-size-differs" not in codes(
        {**LLAMA_REQUEST, "checkpoint": {"total_size": 16_060_522_496}}
    )


def test_twice_the_size_is_named() -> None:
    assert "checkpoint-size-differs" in codes(
        {**LLAMA_REQUEST, "checkpoint": {"total_size": 2 * 16_060_522_496}}
    )


def test_a_flag_that_explains_the_difference_is_enough() -> None:
    assert "checkpoint-size-differs" not in codes(
        {**LLAMA_REQUEST, "quantization": "fp8", "checkpoint": {"total_size": 2 * 16_060_522_496}}
    )


def uncounted_model() -> str:
    from kvcore.model.families import read_architecture

    return next(entry.id for entry in catalogue.load_models() if read_architecture(entry.config).uncounted)


def test_a_part_that_is_not_counted_is_named_and_taken_from_the_size() -> None:
    entry = catalogue.find_model(uncounted_model())
    request = {"model": "my/copy", "config": dict(entry.config.raw), "accelerator": "B300-288GB"}
    without = plan(scenario_from_request(request))
    assert "part-not-counted" in {notice.code for notice in without.notices}
    size = without.parameter_bytes_per_rank + 3 * GIB
    taken = plan(scenario_from_request({**request, "checkpoint": {"total_size": size}}))
    assert "part-from-checkpoint" in {notice.code for notice in taken.notices}
    assert taken.weights.total - without.weights.total == pytest.approx(3 * GIB)
    halved = plan(scenario_from_request({**request, "checkpoint": {"total_size": size // 2}}))
    assert halved.weights.total == without.weights.total


CLASSES = Path(__file__).parent / "data/parity/classes"
DECODERS = Path(__file__).parent / "data/decoders.jsonl"

WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_layers": 32,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "vocab_size": 51866,
    "torch_dtype": "float16",
}

SAM = ("attn.qkv", "attn.proj", "attn.rel_pos_h", "attn.rel_pos_w", "mlp.lin1", "mlp.lin2", "norm1", "norm2")
MOONVIT = ("norm0", "norm1", "mlp.fc0", "mlp.fc1", "wqkv.qkv_proj", "wo")
ORDERS = {
    "Blip2ForConditionalGeneration": (
        "vision_model.embeddings.class_embedding",
        "vision_model.embeddings.position_embedding",
        "vision_model.embeddings.patch_embedding",
        "vision_model.post_layernorm",
        "vision_model.encoder.layers.0.self_attn.qkv",
    ),
    "DeepseekOCR2ForCausalLM": tuple(f"model.sam_model.blocks.0.{name}" for name in SAM),
    "deepseek-ai/deepseek-vl2-tiny": tuple(
        f"vision.attn_pool.{name}" for name in ("q", "kv", "proj", "norm")
    ),
    "DotsOCRForCausalLM": ("vision_tower.post_trunk_norm", "vision_tower.blocks.0.attn.qkv"),
    "InternS1ForConditionalGeneration": (
        "vision_tower.embeddings.position_embeddings",
        "vision_tower.encoder.layer.0.attention.q_proj",
        "multi_modal_projector.layer_norm",
        "multi_modal_projector.linear_1",
    ),
    "KeyeForConditionalGeneration": (
        "mlp_AR.linear_2",
        "visual.vision_model.embeddings.packing_position_embedding",
    ),
    "KimiVLForConditionalGeneration": tuple(f"vision_tower.encoder.blocks.0.{name}" for name in MOONVIT),
    "Ovis2_5": (
        "visual_tokenizer.vit.vision_model.embeddings.position_embedding",
        "visual_tokenizer.vit.vision_model.encoder.layers.0.self_attn.qkv_proj",
    ),
    "THUDM/GLM-4.1V-9B-Thinking": (
        "visual.patch_embed.proj",
        "visual.embeddings.position_embedding",
        "visual.post_conv_layernorm",
        "visual.post_layernorm",
    ),
    "allenai/Molmo-7B-D-0924": (
        "vision_backbone.image_vit.transformer.resblocks.0.attention.wq",
        "vision_backbone.image_pooling_2d.wq",
        "vision_backbone.image_projector.merged_linear",
        "vision_backbone.pad_embed",
    ),
}


def architecture_of(name: str) -> Architecture:
    """Of a model class in tests/data/parity/classes, or of a model in tests/data/decoders.jsonl."""
    if "/" not in name:
        config = json.loads((CLASSES / f"{name}.json").read_text())["config"]
    else:
        facts = (json.loads(line) for line in DECODERS.read_text().splitlines())
        config = next(fact["config"] for fact in facts if fact.get("model") == name)
    return read_architecture(ModelConfig.from_mapping(config))


class TestOrder:
    @pytest.mark.parametrize(("name", "order"), ORDERS.items(), ids=ORDERS)
    def test_of_an_encoder(self, name, order):
        names = [module.name for module in architecture_of(name).every]
        assert [each for each in names if each in order] == list(order)

    def test_of_a_layer_that_attends_to_an_encoder(self):
        layer = read_architecture(ModelConfig.from_mapping(WHISPER)).layers[0]
        assert [module.name for module in layer.modules] == [
            "self_attn.qkv_proj",
            "self_attn.out_proj",
            "encoder_attn.q_proj",
            "encoder_attn.kv_proj",
            "encoder_attn.out_proj",
            "fc1",
            "fc2",
            "self_attn_layer_norm",
            "encoder_attn_layer_norm",
            "final_layer_norm",
        ]

    def test_decides_the_bytes(self):
        """A kilobyte takes the first module whole: the patch convolution over 2 frames of 14 x 14 pixels."""
        request = {
            "model": "THUDM/GLM-4.1V-9B-Thinking",
            "accelerator": "H100-80GB",
            "engine_version": "0.32.0",
        }
        weights = plan(scenario_from_request(request | {"cpu_offload_gb": 1e-6})).weights
        assert weights.offloaded == 2 * 1536 * (3 * 2 * 14 * 14 + 1)
