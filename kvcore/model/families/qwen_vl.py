"""Qwen-VL, Qwen-Omni, Qwen-ASR, GLM-V and models with an encoder like theirs: dots.ocr, openPangu-VL, HyperCLOVA X SEED
Think, ColQwen, the Jina reranker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec.structs import replace

from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import qwen
from kvcore.model.families.multimodal import Builder, behind_encoders
from kvcore.model.parts import audio_encoders, blocks, image_encoders
from kvcore.model.parts import encoder as enc

ImageBuilder: TypeAlias = Callable[[Section], enc.Encoder]


def visual(build: ImageBuilder) -> Builder:
    """An encoder with its merger that needs nothing but the config's `vision_config`.

    Source: vllm/model_executor/models/qwen2_vl.py, qwen2_5_vl.py, opencua.py, exaone4_5.py, qwen3_vl.py,
    qwen3_vl_moe.py, glm4_1v.py (0.32).
    """
    return lambda config, text: enc.under("visual", build(config.root.section("vision_config")))


def glm_ocr(config: ModelConfig, _text: int) -> enc.Encoder:
    """GLM-OCR, whose merger is as wide inside as the language part's MLP.

    Source: vllm/model_executor/models/glm_ocr.py (0.32).
    """
    section = config.root.section("vision_config")
    wide, bias = config.language.integer("intermediate_size"), section.boolean("attention_bias", True)
    return enc.under("visual", image_encoders.glm_ocr(section, wide, bias=bias))


DOTS: Final = replace(enc.TIMM, up="mlp.fc13")


def dots_ocr(config: ModelConfig, _text: int) -> enc.Encoder:
    """dots.ocr: gated blocks with RMS norms, Qwen2.

    The largest image is 11,289,600 pixels / 28²: preprocessor_config.json of dots.ocr, max_pixels.

    Source: vllm/model_executor/models/dots_ocr.py (0.32).
    """
    section = config.root.section("vision_config")
    own, patch = enc.read_sizes(section, "embed_dim"), section.integer("patch_size", maximum=enc.MAX_PATCH)
    width, merge = own.width, enc.read_merge(section, default=2)
    merged, channels = width * merge**2, enc.read_channels(section)
    layer = enc.gated_block(own, DOTS, ("mlp.fc1", "mlp.fc3"), bias=section.boolean("use_bias", False))
    modules = (
        enc.convolution("patch_embed.patchifier.proj", channels, width, patch, patch),
        enc.tensor("patch_embed.patchifier.norm", width),
        enc.norm("merger.ln_q", width),
        enc.column("merger.mlp.0", merged, merged),
        enc.row("merger.mlp.2", merged, section.integer("hidden_size")),
        *enc.when(section.boolean("post_norm", True), enc.tensor("post_trunk_norm", width)),
        *enc.repeated("blocks", own.layers, layer),
    )
    return enc.seeing(enc.behind("vision_tower", modules), own, 14_400, merge**2)


def openpangu_vl(config: ModelConfig, text: int) -> enc.Encoder:
    """openPangu-VL: Qwen2.5-VL's blocks, a merger for each layer whose features are used, one layer to the text.

    Source: vllm/model_executor/models/openpangu_vl.py (0.33).
    """
    section = config.root.section("vision_config")
    vit, out = image_encoders.read_squares(section), section.integer("out_hidden_size")
    own, is_gated = vit.own, section.string("hidden_act", "silu") == "silu"
    names = enc.TIMM_GATED if is_gated else replace(enc.TIMM_GATED, up="mlp.up_proj")
    gates = ("mlp.gate_proj", "mlp.up_proj") if is_gated else ()
    layer = (
        *enc.attention(own, names),
        *enc.mlp(own, names, gates=gates),
        *blocks.norms(own.width, *names.norms),
    )
    merger = (
        enc.norm("ln_q", own.width, bias=False),
        enc.column("mlp.0", vit.merged, vit.merged),
        enc.row("mlp.2", vit.merged, out),
    )
    mergers = image_encoders.count_listed(section, "mm_unit_vision_select_layer") or 2
    modules = (
        *vit.patch_embed(bias=False),
        *enc.repeated("blocks", own.layers, layer),
        enc.norm("final_layernorm", own.width, bias=False),
        *enc.repeated("merger", mergers, merger),
        enc.whole("vision_projection.fc1", out, text),
    )
    return enc.Encoder(modules=enc.behind("visual", modules), vision=vit.limits())


def hyperclovax(config: ModelConfig, text: int) -> enc.Encoder:
    """HyperCLOVA X SEED Think: Qwen2.5-VL's encoder and one layer.

    Source: vllm/model_executor/models/hyperclovax_vision_v2.py (0.33).
    """
    section = config.root.section("vision_config")
    seen = enc.under("visual", image_encoders.qwen2_5_vl(section))
    out = section.integer("out_hidden_size", section.integer("hidden_size"))
    return replace(seen, modules=(*seen.modules, enc.whole("mm_projector", out, text)))


SHORT_VECTOR: Final = ("embed_dim", "dims", "dim", "projection_dim", "colbert_dim")


def colqwen(config: ModelConfig, text: int, *, default: int, bias: bool) -> enc.Encoder:
    """Qwen3-VL's encoder and a projection of every token to a short vector, `default` where the config has no width.

    Source: vllm/model_executor/models/colqwen3.py:ColQwen3Model, colqwen3_5.py:ColQwen3_5Model (0.33).
    """
    root, seen = config.root, visual(image_encoders.qwen3_vl)(config, text)
    short = next(filter(None, (root.optional_integer(key) for key in SHORT_VECTOR)), default)
    projection = replace(enc.whole("custom_text_proj", text, short, bias=bias), dtype="float32")
    return replace(seen, modules=(*seen.modules, *enc.when(short > 0, projection)))


def colqwen3(config: ModelConfig, text: int) -> enc.Encoder:
    """ColQwen 3: without a projection where the config gives no width."""
    return colqwen(config, text, default=0, bias=False)


def colqwen3_5(config: ModelConfig, text: int) -> enc.Encoder:
    """ColQwen 3.5: Qwen3.5's decoder."""
    return colqwen(config, text, default=128, bias=True)


def jina_vl(config: ModelConfig, text: int) -> enc.Encoder:
    """jina-reranker-m0: Qwen2-VL and two layers to a score.

    Source: vllm/model_executor/models/jina_vl.py:JinaVLScorer (0.33).
    """
    seen = visual(image_encoders.qwen2_vl)(config, text)
    labels = config.root.integer("num_labels", 1, maximum=65536)
    score = (enc.column("score.dense", text, text), enc.row("score.out_proj", text, labels))
    layers = (replace(each, dtype="float32", quantizable=False) for each in score)
    return replace(seen, modules=(*seen.modules, *layers))


def omni(
    image: ImageBuilder | None, audio: ImageBuilder, vision: str = "", sound: str | None = None
) -> Builder:
    """The thinker, which alone is loaded; `vision` and `sound` choose the class defaults of its encoders.

    Source: vllm/model_executor/models/qwen2_5_omni_thinker.py, qwen3_omni_moe_thinker.py, qwen3_asr.py (0.32).
    """

    def build(config: ModelConfig, _text: int) -> enc.Encoder:
        thinker = config.root.optional_section("thinker_config") or config.root
        heard = enc.under("audio_tower", audio(thinker.section("audio_config", sound)))
        if image is None:
            return heard
        seen = enc.under("visual", image(thinker.section("vision_config", vision)))
        return enc.Encoder(
            modules=(*seen.modules, *heard.modules),
            vision=seen.vision,
            audio=heard.audio,
            tables=(*seen.tables, *heard.tables),
        )

    return build


THINKER: Final = "thinker.model.layers"

QWEN2_5_OMNI: Final = omni(image_encoders.qwen2_5_vl, audio_encoders.qwen2_5_omni, "qwen2_5_vl/vision_config")
QWEN3_OMNI: Final = omni(
    image_encoders.qwen3_vl,
    audio_encoders.qwen3_omni,
    "qwen3_omni_moe_vision_encoder",
    "qwen3_omni_moe_audio_encoder",
)

READERS: Final = blocks.named(
    (behind_encoders(visual(image_encoders.qwen2_vl)), "Qwen2VLForConditionalGeneration qwen2_vl"),
    (
        behind_encoders(visual(image_encoders.qwen2_5_vl)),
        "Qwen2_5_VLForConditionalGeneration qwen2_5_vl OpenCUAForConditionalGeneration opencua",
        "Exaone4_5_ForConditionalGeneration exaone4_5",
    ),
    (
        behind_encoders(visual(image_encoders.qwen3_vl)),
        "Qwen3VLForConditionalGeneration qwen3_vl Qwen3VLMoeForConditionalGeneration qwen3_vl_moe",
    ),
    (
        behind_encoders(visual(image_encoders.glm4v)),
        "Glm4vForConditionalGeneration glm4v Glm4vMoeForConditionalGeneration glm4v_moe",
    ),
    (behind_encoders(glm_ocr), "GlmOcrForConditionalGeneration glm_ocr"),
    (behind_encoders(dots_ocr), "DotsOCRForCausalLM dots_ocr"),
    (behind_encoders(openpangu_vl), "OpenPanguVLForConditionalGeneration"),
    (behind_encoders(hyperclovax), "HCXVisionV2ForCausalLM"),
    (behind_encoders(colqwen3), "ColQwen3 OpsColQwen3Model Qwen3VLNemotronEmbedModel colqwen3 ops_colqwen3"),
    (behind_encoders(colqwen3_5, qwen.read_text, "model.language_model.layers"), "ColQwen3_5 colqwen3_5"),
    (behind_encoders(jina_vl), "JinaVLForRanking"),
    (
        behind_encoders(QWEN2_5_OMNI, layer_prefix=THINKER),
        "Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel qwen2_5_omni qwen2_5_omni_thinker",
    ),
    (
        behind_encoders(QWEN3_OMNI, layer_prefix=THINKER),
        "Qwen3OmniMoeForConditionalGeneration qwen3_omni_moe",
    ),
    (
        behind_encoders(omni(None, audio_encoders.qwen3_omni), layer_prefix=THINKER),
        "Qwen3ASRForConditionalGeneration qwen3_asr Qwen3ASRRealtimeGeneration",
    ),
)
