"""Molmo and Molmo 2: an image encoder, pooling attention over two of its layers, a decoder like Qwen's or OLMo's."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc

EXTRA_VOCABULARY: Final = 128
"""Source: vllm/model_executor/models/molmo.py:ADDITIONAL_VOCAB_SIZE (0.32)."""

MAX_CROPS_2: Final = 8
"""Source: preprocessor_config.json of Molmo2-8B, max_crops."""

PREFIX: Final = "vision_backbone"
BLOCK: Final = enc.Names(
    "attention.merged_qkv",
    "attention.wo",
    "feed_forward.w1",
    "feed_forward.w2",
    ("attention_norm", "ffn_norm"),
    ("wq", "wk", "wv"),
)


def read(config: ModelConfig) -> arch.Architecture:
    """Molmo.

    Source: vllm/model_executor/models/molmo.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, double = heads.hidden_size, section.integer("intermediate_size")
    if double % 2:
        raise section.contradicting("intermediate_size", f"{double} is two halves, and odd")
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=section.boolean("qkv_bias", False)),
        *blocks.gated_mlp(hidden, double // 2),
        *blocks.norms(hidden, "input_layernorm", "post_attention_layernorm"),
    ]
    if section.boolean("attention_layer_norm", False):
        modules.append(blocks.norm("self_attn.q_norm", hidden))
        modules.append(blocks.norm("self_attn.k_norm", heads.num_kv_heads * heads.head_dim))
    vocabulary = section.integer("embedding_size", section.integer("vocab_size"))
    tied = section.boolean("weight_tying", section.boolean("tie_word_embeddings", False))
    output = arch.VocabEmbedding(
        name="lm_head", num_embeddings=vocabulary, embedding_dim=hidden, quantizable=True
    )
    final = blocks.norm("model.norm", hidden)
    image = image_encoder(config.root, double // 2, hidden)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),)),) * section.layers(),
        intermediate_size=double // 2,
        first=(enc.sharded_table("model.embed_tokens", vocabulary + EXTRA_VOCABULARY, hidden),),
        last=(final,) if tied else (final, output),
        tied=tied,
        every=image.modules,
        vision=image.vision,
        is_multimodal=True,
        vocab_size=section.integer("vocab_size"),
    )


def read_molmo2(config: ModelConfig) -> arch.Architecture:
    """Molmo 2.

    Source: vllm/model_executor/models/molmo2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    modules: list[arch.Module] = [
        blocks.qkv(heads, "self_attn.att_proj", ("att_proj",), bias=section.boolean("qkv_bias", False)),
        blocks.row("self_attn.attn_out", heads.num_heads * heads.head_dim, hidden),
        *blocks.gated_mlp(hidden, intermediate),
        *blocks.norms(hidden, "attn_norm", "ff_norm"),
    ]
    if section.boolean("use_qk_norm", False):
        per_head = section.string("qk_norm_type", "olmo") == "qwen3"
        modules += (
            blocks.norm("self_attn.q_norm", heads.head_dim * (1 if per_head else heads.num_heads)),
            blocks.norm("self_attn.k_norm", heads.head_dim * (1 if per_head else heads.num_kv_heads)),
        )
    vocabulary = section.integer("vocab_size") + section.integer("additional_vocab_size", 128)
    adapter, vit = config.root.section("adapter_config"), config.root.section("vit_config")
    sides, patch = vit.integers("image_default_input_size", minimum=1), vit.integer("image_patch_size")
    side = (sides[0] if sides else 378) // patch
    looked_at = feature_layers(vit, adapter)
    tokens = (-(-side // 2)) ** 2 * (MAX_CROPS_2 + 1)
    own = replace(with_heads(vit), layers=max(looked_at) + 1)
    wide = own.width * len(looked_at)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),)),) * section.layers(),
        intermediate_size=intermediate,
        first=(enc.sharded_table("model.transformer.wte", vocabulary, hidden),),
        every=enc.behind(
            PREFIX, (*enc.behind("image_vit", image_encoder2(vit, own)), *pooling(adapter, wide))
        ),
        tied=section.boolean("tie_word_embeddings", False),
        vision=enc.images(own, tokens, 4),
        is_multimodal=True,
        layer_prefix="model.transformer.blocks",
    )


def image_encoder(root: Section, gate: int, text: int) -> enc.Encoder:
    """Molmo's ViT, pooling attention over two of its layers, and a projector as wide as the language part's MLP.

    Source: vllm/model_executor/models/molmo.py:VisionBackboneConfig, VIT_LAYERS (0.32).
    """
    own, positions, crops = enc.read_sizes(root, 1024, 4096, 1, 23), 577, 12
    width = own.width
    vit = (
        enc.tensor("class_embedding", width),
        enc.tensor("positional_embedding", positions, width),
        enc.tensor("patch_embedding", 3 * 14**2, width),
        enc.norm("pre_ln", width),
        *enc.repeated(
            "transformer.resblocks",
            own.layers,
            (*separate("attention", width, width), *enc.mlp(own, BLOCK), *enc.norms(own, BLOCK)),
        ),
    )
    modules = (
        *enc.behind("image_vit", vit),
        *separate("image_pooling_2d", 2 * width, width),
        enc.merged("image_projector.merged_linear", width, gate, bias=False),
        enc.row("image_projector.down_proj", gate, text, bias=False),
        enc.tensor("pad_embed", 2 * 2, width),
    )
    tokens = (positions - 1) // 4 * (crops + 1)
    return enc.seeing(enc.behind(PREFIX, modules), own, tokens, 4)


def separate(prefix: str, sources: int, width: int) -> enc.Modules:
    """Attention whose projections are not fused."""
    layers = (enc.column(f"{prefix}.w{name}", sources, width) for name in "qkv")
    return (*layers, enc.row(f"{prefix}.wo", width, width))


def with_heads(section: Section) -> enc.Sizes:
    """Sizes of Molmo 2's ViT and of its pooling, which both name the size of a head."""
    own = enc.read_sizes(section, head=section.integer("head_dim"), layers=1)
    return replace(own, kv_heads=section.integer("num_key_value_heads", own.heads))


def image_encoder2(section: Section, own: enc.Sizes) -> enc.Modules:
    """Molmo 2's ViT up to the deepest block that is looked at.

    Source: vllm/model_executor/models/molmo2.py:Molmo2VisionTransformer (0.32).
    """
    patch = section.integer("image_patch_size", maximum=enc.MAX_PATCH)
    return (
        enc.tensor("positional_embedding", section.integer("image_num_pos"), own.width),
        enc.whole("patch_embedding", 3 * patch**2, own.width),
        *enc.repeated("transformer.resblocks", own.layers, enc.block(own, BLOCK)),
    )


def pooling(section: Section, wide: int) -> enc.Modules:
    """Attention of a square of patches over some of the encoder's blocks, `wide` together, and a gated projector.

    Source: vllm/model_executor/models/molmo2.py:ImagePoolingAttention, ImageProjectorMLP (0.32).
    """
    own = with_heads(section)
    half = arch.Output(units=own.kv_heads, width=own.head, replicable=True)
    merged_kv = arch.Linear(
        name="image_pooling_2d.merged_kv",
        in_features=wide,
        outputs=(half, half),
        split=arch.Split.COLUMN,
        bias=True,
        parts=("image_pooling_2d.wk", "image_pooling_2d.wv"),
    )
    gates = ("image_projector.w1", "image_projector.w3")
    return (
        enc.column("image_pooling_2d.wq", wide, own.attended),
        merged_kv,
        enc.row("image_pooling_2d.wo", own.attended, own.width),
        enc.merged("image_projector.merged_linear", own.width, own.inner, gates, bias=False),
        enc.row("image_projector.w2", own.inner, section.integer("text_hidden_size"), bias=False),
    )


def feature_layers(vit: Section, adapter: Section) -> tuple[int, ...]:
    """Blocks of the encoder that the pooling looks at, counted from its start."""
    total = vit.layers()
    chosen = adapter.get("vit_layers") or [-3, -9]
    if not isinstance(chosen, list) or not all(
        isinstance(index, int) and -total <= index < total for index in chosen
    ):
        raise adapter.invalid("vit_layers", chosen, f"expected numbers of the encoder's {total} layers")
    return tuple(index + total if index < 0 else index for index in chosen)


READERS: Final = blocks.named(
    (read, "MolmoForCausalLM molmo"),
    (read_molmo2, "Molmo2ForConditionalGeneration molmo2"),
)
