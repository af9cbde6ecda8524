"""ERNIE 4.5 VL: experts for texts next to experts for images in sparse layers, an image encoder and a resampler."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc

POSITIONS_PER_TOKEN: Final = 4
"""Factor by which the table is longer than the context.

Source: vllm/model_executor/layers/rotary_embedding/ernie45_vl_rope.py, mrope.py (0.32)."""

KINDS: Final = ("text", "vision")


def read(config: ModelConfig) -> arch.Architecture:
    """ERNIE 4.5 VL.

    Source: vllm/model_executor/models/ernie45_vl_moe.py, ernie45_vl.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    count = section.layers()
    experts = [read_experts(section, index, heads.hidden_size) for index in range(len(KINDS))]
    shared = section.integer("moe_num_shared_experts", 0, minimum=0) * experts[0].intermediate_size
    bias = section.boolean("use_bias", False)
    common: tuple[arch.Module, ...] = (
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.norms(heads.hidden_size, "input_layernorm", "post_attention_layernorm"),
    )
    cache = (blocks.cache_of(heads),)
    sparse = arch.Layer(modules=(*common, *expert_modules(heads, experts, shared, bias)), caches=cache)
    intermediate = section.integer("intermediate_size")
    dense = arch.Layer(
        modules=(*common, *blocks.gated_mlp(heads.hidden_size, intermediate, bias=bias)), caches=cache
    )
    table = arch.RotaryTable(
        max_positions=POSITIONS_PER_TOKEN * section.integer("max_position_embeddings"),
        rotary_dim=heads.head_dim,
    )
    built = blocks.decoder(
        config,
        heads=heads,
        layers=tuple(sparse if each else dense for each in which_layers_are_sparse(section, count)),
        intermediate_size=intermediate,
        tied=blocks.is_tied(config, section, True),
        rotary_tables=(table,) * count,
        layer_prefix="model.layers",
        moe=arch.MixtureOfExperts(
            num_experts=experts[0].num_experts,
            top_k=experts[0].top_k,
            moe_intermediate_size=experts[0].intermediate_size,
            shared_intermediate_size=shared,
        ),
    )
    seen = image_encoder(config.root.section("vision_config"))
    modules = (*seen.modules, *resampler(config.root, heads.hidden_size))
    return enc.with_encoders(built, replace(seen, modules=modules))


def image_encoder(section: Section) -> enc.Encoder:
    """Plain blocks behind a linear patch embedding.

    The largest image is as preprocessor_config.json of ERNIE-4.5-VL-28B-A3B-PT says: max_pixels / 28².

    Source: vllm/model_executor/models/ernie45_vl.py:Ernie4_5_VisionTransformer (0.32).
    """
    width = section.integer("embed_dim", section.optional_integer("hidden_size"))
    own = enc.read_sizes(section, width, enc.share(section, width, 4), "num_heads", "depth")
    pixels = (
        enc.read_channels(section, "in_channels") * section.integer("patch_size", maximum=enc.MAX_PATCH) ** 2
    )
    modules = (
        enc.whole("patch_embed.proj", pixels, width, bias=False),
        enc.norm("ln", width),
        *enc.repeated("blocks", own.layers, enc.block(own, enc.TIMM)),
    )
    seen = enc.seeing(modules, own, 16384, enc.read_merge(section, default=2) ** 2)
    return enc.under("vision_model", seen)


def resampler(root: Section, text: int) -> enc.Modules:
    """From a square of patches, and two moments of a video, to one token.

    Source: vllm/model_executor/models/ernie45_vl.py:VariableResolutionResamplerModel (0.32).
    """
    space, time = enc.read_merge(root, "spatial_conv_size", 2), enc.read_merge(root, "temporal_conv_size", 2)
    width, prefix = root.integer("pixel_hidden_size") * space**2, "model.resampler_model"
    temporal = (
        enc.column("temporal_linear.0", width * time, width),
        enc.column("temporal_linear.2", width, width),
        enc.norm("temporal_linear.3", width),
    )
    modules = (
        enc.column("spatial_linear.0", width, width),
        enc.column("spatial_linear.2", width, width),
        enc.norm("spatial_linear.3", width),
        enc.column("mlp", width, text),
        enc.tensor("after_norm", text),
        *enc.when(root.boolean("use_temporal_conv", True), *temporal),
    )
    return enc.behind(prefix, modules)


def pair(section: Section, name: str, default: int | None = None) -> tuple[int, int]:
    """Two numbers, for texts and for images, or one for both."""
    value = section.get(name)
    if isinstance(value, list):
        numbers = section.integers(name) or ()
        if len(numbers) != len(KINDS):
            raise section.invalid(name, value, "expected two integers")
        return numbers[0], numbers[1]
    number = section.integer(name, default, minimum=0)
    return number, number


def read_experts(section: Section, index: int, hidden: int) -> arch.Experts:
    """The routed experts for texts (0) or images (1)."""
    return arch.Experts(
        name=f"mlp.{KINDS[index]}_experts",
        num_experts=pair(section, "moe_num_experts")[index],
        hidden_size=hidden,
        intermediate_size=pair(section, "moe_intermediate_size")[index],
        top_k=section.integer("moe_k", 2, maximum=65_536),
    )


def expert_modules(
    heads: blocks.Heads, experts: list[arch.Experts], shared: int, bias: bool
) -> tuple[arch.Module, ...]:
    """Two routers, two sets of routed experts, and shared experts."""
    hidden = heads.hidden_size
    bias_elements = len(experts) * experts[0].num_experts
    return (
        arch.Parameter(name="mlp.e_score_correction_bias", replicated=bias_elements, dtype="float32"),
        *(
            blocks.replicated(
                f"{each.name}_gate", hidden, each.num_experts, quantizable=False, dtype="float32"
            )
            for each in experts
        ),
        *experts,
        *(blocks.gated_mlp(hidden, shared, "mlp.shared_experts", bias=bias) if shared else ()),
    )


def which_layers_are_sparse(section: Section, count: int) -> tuple[bool, ...]:
    """Whether each layer has experts, of both kinds."""
    starts = pair(section, "moe_layer_start_index", 0)
    ends = pair(section, "moe_layer_end_index", count - 1)
    step = section.integer("moe_layer_interval", 1)
    kinds = [
        tuple(start <= index <= end and (index + 1) % step == 0 for index in range(count))
        for start, end in zip(starts, ends, strict=True)
    ]
    if kinds[0] != kinds[1]:
        raise section.contradicting(
            "moe_layer_start_index", "layers with experts of one kind alone are not read"
        )
    return kinds[0]


READERS: Final = blocks.named(
    (read, "Ernie4_5_VLMoeForConditionalGeneration ernie4_5_moe_vl ernie4_5_vl_moe"),
)
