"""Transformers for images and sound beside a language model: SigLIP, Llama 4, MoonViT, Gemma 4."""

from __future__ import annotations

from kvcore.model.architecture import Linear, Module, Output, Parameter, Split
from kvcore.model.config import Section
from kvcore.model.parts.blocks import column, norm, norms, replicated, row, whole_unless_divided


def read_siglip(vision: Section, prefix: str, layers: int | None = None) -> tuple[Module, ...]:
    """Patch and position embeddings, the layers, and the last norm; names begin with `prefix`.

    With fewer `layers` than the config names, the last norm is left out.

    Source: vllm/model_executor/models/siglip.py:SiglipVisionTransformer (0.32).
    """
    hidden = vision.integer("hidden_size")
    patch = vision.integer("patch_size")
    positions = (vision.integer("image_size") // patch) ** 2
    pixels = vision.integer("num_channels", 3) * patch**2
    modules: list[Module] = [
        Parameter(name=f"{prefix}embeddings.patch_embedding", replicated=(pixels + 1) * hidden),
        Parameter(name=f"{prefix}embeddings.position_embedding", replicated=positions * hidden),
    ]
    count = vision.layers() if layers is None else layers
    for index in range(count):
        modules += siglip_layer(vision, hidden, f"{prefix}encoder.layers.{index}.")
    if count == vision.layers():
        modules.append(norm(f"{prefix}post_layernorm", hidden, bias=True))
    return tuple(modules)


def siglip_layer(vision: Section, hidden: int, prefix: str) -> tuple[Module, ...]:
    """One layer. An MLP whose sizes are no multiples of 64 is never quantized."""
    intermediate = vision.integer("intermediate_size")
    heads = vision.integer("num_attention_heads")
    can_quantize = hidden % 64 == 0 and intermediate % 64 == 0
    up = column(f"{prefix}mlp.fc1", hidden, intermediate, bias=True)
    down = row(f"{prefix}mlp.fc2", intermediate, hidden, bias=True)
    return (
        tower_qkv(f"{prefix}self_attn", hidden, heads),
        row(f"{prefix}self_attn.out_proj", hidden, hidden, bias=True),
        *((up, down) if can_quantize else (unquantized(up), unquantized(down))),
        *norms(hidden, f"{prefix}layer_norm1", f"{prefix}layer_norm2", bias=True),
    )


def unquantized(linear: Linear) -> Linear:
    """The same layer, left in the model's dtype."""
    return Linear(
        name=linear.name,
        in_features=linear.in_features,
        outputs=linear.outputs,
        split=linear.split,
        bias=linear.bias,
        quantizable=False,
    )


def read_llama4_tower(vision: Section, text_hidden_size: int) -> tuple[Module, ...]:
    """Llama 4's vision model and projector.

    Source: vllm/model_executor/models/mllama4.py (0.32).
    """
    hidden = vision.integer("hidden_size")
    intermediate = vision.integer("intermediate_size")
    patch = vision.integer("patch_size")
    patches = (vision.integer("image_size") // patch) ** 2 + 1
    pixels = vision.integer("num_channels", 3) * patch**2
    inner, outer = vision.integer("projector_input_dim"), vision.integer("projector_output_dim")
    bias = vision.boolean("multi_modal_projector_bias", False)
    modules: list[Module] = [
        column("vision_model.patch_embedding.linear", pixels, hidden),
        Parameter(name="vision_model.class_embedding", replicated=hidden),
        Parameter(name="vision_model.positional_embedding_vlm", replicated=patches * hidden),
        *norms(hidden, "vision_model.layernorm_pre", "vision_model.layernorm_post", bias=True),
        column("vision_model.vision_adapter.mlp.fc1", intermediate, inner, bias=bias),
        row("vision_model.vision_adapter.mlp.fc2", inner, outer, bias=bias),
        column("multi_modal_projector.linear_1", vision.integer("vision_output_dim"), text_hidden_size),
    ]
    heads = vision.integer("num_attention_heads")
    for index in range(vision.layers()):
        prefix = f"vision_model.model.layers.{index}."
        modules += [
            tower_qkv(f"{prefix}self_attn", hidden, heads),
            row(f"{prefix}self_attn.o_proj", hidden, hidden, bias=True),
            column(f"{prefix}mlp.fc1", hidden, intermediate, bias=True),
            row(f"{prefix}mlp.fc2", intermediate, hidden, bias=True),
            *norms(hidden, f"{prefix}input_layernorm", f"{prefix}post_attention_layernorm", bias=True),
        ]
    return tuple(modules)


def tower_qkv(prefix: str, hidden: int, heads: int) -> Linear:
    """A fused projection with biases, as many key and value heads as queries."""
    return Linear(
        name=f"{prefix}.qkv_proj",
        in_features=hidden,
        outputs=(Output(units=heads, width=hidden // heads),) * 3,
        split=Split.COLUMN,
        bias=True,
        parts=tuple(f"{prefix}.{part}_proj" for part in "qkv"),
    )


def read_moonvit(
    vision: Section, text_hidden_size: int, keys: str = "vt_", projector: str = "mm_projector"
) -> tuple[Module, ...]:
    """MoonViT, in the later one with space and time, and its patch-merging projector.

    Source: vllm/model_executor/models/kimi_k25_vit.py, moonvit.py, kimi_vl.py (0.32).
    """
    hidden = vision.integer(f"{keys}hidden_size")
    patch = vision.integer("patch_size")
    height, width = vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")
    merge = vision.integers("merge_kernel_size", minimum=1) or (2, 2)
    if len(merge) != 2:
        raise vision.invalid("merge_kernel_size", merge, "expected two numbers")
    merged = hidden * merge[0] * merge[1]
    modules: list[Module] = [
        Parameter(name="vision_tower.patch_embed.proj", replicated=(3 * patch**2 + 1) * hidden),
        Parameter(name="vision_tower.patch_embed.pos_emb", replicated=height * width * hidden),
        norm("vision_tower.encoder.final_layernorm", hidden, bias=True),
        norm(f"{projector}.pre_norm", hidden, bias=True),
        unquantized(replicated(f"{projector}.linear_1", merged, merged, bias=True)),
        unquantized(replicated(f"{projector}.linear_2", merged, text_hidden_size, bias=True)),
    ]
    heads, intermediate = (
        vision.integer(f"{keys}num_attention_heads"),
        vision.integer(f"{keys}intermediate_size"),
    )
    for index in range(vision.layers(f"{keys}num_hidden_layers")):
        prefix = f"vision_tower.encoder.blocks.{index}."
        modules += [
            *norms(hidden, f"{prefix}norm0", f"{prefix}norm1", bias=True),
            *whole_unless_divided(
                heads,
                unquantized(column(f"{prefix}mlp.fc0", hidden, intermediate, bias=True)),
                unquantized(row(f"{prefix}mlp.fc1", intermediate, hidden, bias=True)),
                unquantized(tower_qkv(f"{prefix}wqkv", hidden, heads)),
                unquantized(row(f"{prefix}wo", hidden, hidden, bias=True)),
            ),
        ]
    return tuple(modules)


def read_gemma4_vision(vision: Section, text_hidden_size: int) -> tuple[Module, ...]:
    """Gemma 4's image encoder, whole on every rank, and its projection.

    Source: transformers 5.19, models/gemma4/modeling_gemma4.py:Gemma4VisionModel;
    vllm/model_executor/models/gemma4_mm.py (0.32).
    """
    hidden, intermediate = vision.integer("hidden_size"), vision.integer("intermediate_size")
    head = vision.integer("head_dim")
    queries = vision.integer("num_attention_heads") * head
    keys = vision.integer("num_key_value_heads", queries // head) * head
    layer = 2 * hidden * (queries + keys) + 3 * hidden * intermediate + 4 * hidden + 2 * head
    pixels = vision.integer("num_channels", 3) * vision.integer("patch_size") ** 2
    positions = 2 * vision.integer("position_embedding_size") * hidden
    return (
        Parameter(name="vision_tower.patch_embedder", replicated=pixels * hidden + positions),
        *(
            Parameter(name=f"vision_tower.encoder.layers.{index}", replicated=layer)
            for index in range(vision.layers())
        ),
        replicated("embed_vision.embedding_projection", hidden, text_hidden_size),
    )


def read_gemma4_audio(audio: Section, text_hidden_size: int) -> tuple[Module, ...]:
    """Gemma 4's Conformer for sound, whole on every rank, and its projection.

    A layer is attention with relative positions, two MLPs of four times the width, and a light convolution.

    Source: transformers 5.19, models/gemma4/modeling_gemma4.py:Gemma4AudioModel;
    vllm/model_executor/models/gemma4_mm.py (0.32).
    """
    hidden = audio.integer("hidden_size")
    kernel = audio.integer("conv_kernel_size")
    head = hidden // audio.integer("num_attention_heads")
    channels = audio.integers("subsampling_conv_channels", minimum=1) or ()
    if len(channels) != 2:
        raise audio.invalid("subsampling_conv_channels", channels, "expected two numbers")
    projected = audio.integer("output_proj_dims")
    matrices = 5 + 2 * 8 + 3
    vectors = kernel + 2 * 2 + 2 + 3
    layer = matrices * hidden**2 + vectors * hidden + head
    start = (9 + 1) * channels[0] + (9 * channels[0] + 1) * channels[1]
    return (
        Parameter(name="audio_tower.subsample_conv_projection", replicated=start),
        Parameter(
            name="audio_tower.subsample_conv_projection.input_proj_linear",
            replicated=channels[0] // 4 * channels[1] * hidden,
        ),
        *(Parameter(name=f"audio_tower.layers.{index}", replicated=layer) for index in range(audio.layers())),
        Parameter(name="audio_tower.output_proj", replicated=(hidden + 1) * projected),
        replicated("embed_audio.embedding_projection", projected, text_hidden_size),
    )
