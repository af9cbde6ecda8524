"""The order of modules, which decides what `--cpu-offload-gb` leaves in the host's memory."""

import json
from pathlib import Path

import pytest

from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.planning import plan
from kvcore.scenario.request import scenario_from_request

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
