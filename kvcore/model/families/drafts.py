"""Drafts of other models: EAGLE and EAGLE-3 heads, drafts of several tokens at once, heads without a cache.

EAGLE heads are a few Llama layers that draft from the hidden states of another model. DFlash and DSpark propose several
tokens at once with Qwen 3's layers. Medusa and MLP speculators are heads over the model's last state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError, ModelError
from kvcore.base.kept import Keeper
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.quantization import NOT_QUANTIZED, Quantization, read_quantization
from kvcore.model.rope import read_ropes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draft(Keeper):
    """A draft as the engine stores it, on the last pipeline stage: without what it shares with the model.

    Compared by identity, as architectures are.
    """

    layers: tuple[arch.Layer, ...]
    quantization: Quantization
    layer_prefix: str = "model.layers"
    first_index: int = 0
    """The number of its first layer in the checkpoint."""
    modules: tuple[arch.Module, ...] = ()
    """Modules next to the layers, under full checkpoint names."""
    embedding: arch.VocabEmbedding | None = None
    """The embedding that it shares with the model; with pipeline stages it keeps a copy."""
    rotary_tables: tuple[arch.RotaryTable, ...] = ()
    """Tables that it does not share with the model."""
    is_assumed: bool = False
    """Its config is not known: it is as published heads for such models are."""


def checkpoint_draft(architecture: arch.Architecture, quantization: Quantization) -> Draft:
    """The multi-token-prediction layers of the model's own checkpoint; embedding, lm_head and rope are the model's.

    Source: vllm/v1/worker/gpu/spec_decode/eagle/utils.py:load_eagle_model (0.32).
    """
    continues = not architecture.draft_prefix
    return Draft(
        layers=architecture.draft_layers,
        quantization=quantization if architecture.drafts_are_quantized else Quantization(),
        layer_prefix=architecture.layer_prefix if continues else architecture.draft_prefix,
        first_index=architecture.num_layers if continues else 0,
        modules=architecture.draft_modules,
        embedding=first_embedding(architecture),
    )


def spark_draft(architecture: arch.Architecture, quantization: Quantization) -> Draft | None:
    """The DSpark draft of the model's own checkpoint, None without one; embedding and lm_head are the model's."""
    spark = architecture.spark
    if spark is None:
        return None
    return Draft(
        layers=spark.layers,
        quantization=quantization,
        layer_prefix=architecture.layer_prefix,
        first_index=architecture.num_layers,
        modules=spark.modules,
        embedding=first_embedding(architecture),
    )


def whole_model_draft(architecture: arch.Architecture, quantization: Quantization) -> Draft:
    """A smaller model that drafts on its own; it shares nothing.

    Source: vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py (0.32).
    """
    return Draft(
        layers=architecture.layers,
        quantization=quantization,
        layer_prefix=architecture.layer_prefix,
        modules=(*architecture.first, *architecture.every, *architecture.last),
        rotary_tables=architecture.rotary_tables,
    )


def first_embedding(architecture: arch.Architecture) -> arch.VocabEmbedding | None:
    """The token embedding of a model."""
    return next((module for module in architecture.first if isinstance(module, arch.VocabEmbedding)), None)


EAGLE3: Final = "eagle3"
AUXILIARY_STATES: Final = 3
"""Hidden states of the model that an EAGLE-3 head begins with, where its config names no layers."""

USUAL_VOCABULARY: Final = 32_000
"""Tokens that published EAGLE-3 heads choose from."""

LLAMA_LIKE: Final = ("Llama", "Mistral", "Qwen2", "Qwen3", "MiniMaxM2", "Peagle", "PEagle")
"""Words in the names of heads with Llama layers. Source: vllm/model_executor/models/registry.py (0.32)."""


def read_head(config: ModelConfig, method: str, target: arch.Architecture, max_model_len: int) -> Draft:
    """The head that a config describes, for `target`. Embedding and, unless its vocabulary is its own, lm_head are
    the target's.

    `max_model_len` is the target's: positions of the head's rope table reach at least that far. A table of a size that
    the target has counts as shared.

    Raises ModelError `unknown-architecture` for heads of other layers.

    Source: vllm/model_executor/models/llama_eagle.py, llama_eagle3.py, qwen3_eagle3.py;
    vllm/config/speculative.py:_maybe_override_draft_max_position_embeddings (0.32).
    """
    section = head_section(config)
    names = config.architectures or section.strings("architectures") or ()
    if names and not any(part in name for name in names for part in LLAMA_LIKE):
        raise ModelError(
            "unknown-architecture",
            field="speculative_config.model",
            architecture=", ".join(names),
            reason="only heads with Llama layers are read",
        )
    heads = blocks.read_heads(section)
    has_qk_norm = any("Qwen3" in name for name in names) or section.model_type == "qwen3"
    layers = tuple(
        head_layer(section, heads, method, is_first=index == 0, has_qk_norm=has_qk_norm)
        for index in range(section.layers())
    )
    positions = max(section.integer("max_position_embeddings", 2048), max_model_len)
    tables = (rope.table(heads.head_dim, positions) for rope in read_ropes(section))
    return Draft(
        layers=layers,
        quantization=read_quantization(config, None),
        modules=head_modules(config.root, section, heads, method, target),
        embedding=first_embedding(target),
        rotary_tables=tuple(table for table in tables if table not in target.rotary_tables),
    )


def head_section(config: ModelConfig) -> Section:
    """Where a head's own sizes are: inside `transformer_layer_config` (speculators), `model` (EAGLE), or plain."""
    nested = map(config.root.optional_section, ("transformer_layer_config", "model"))
    return next(filter(None, nested), None) or config.language


def usual_head(method: str, target: arch.Architecture) -> Draft:
    """One dense layer with the target's own heads, as published heads for such models are.

    For a target with latent attention the head keeps latent vectors of the same size.
    """
    if not target.num_attention_heads:
        raise EngineRefusalError(
            "speculative-method-unsupported", field="speculative_config.method", value=method
        )
    width = target.hidden_size // target.num_attention_heads if target.is_mla else target.head_dim
    usual = {
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.num_attention_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": width,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": min(USUAL_VOCABULARY, target.vocab_size),
    }
    head = read_head(ModelConfig.from_mapping(usual), method, target, target.max_model_len)
    if target.is_mla:
        latents = target.layers[-1].caches[-1:]
        head = dataclasses.replace(
            head, layers=tuple(replace(layer, caches=latents) for layer in head.layers)
        )
    return dataclasses.replace(head, rotary_tables=(), is_assumed=True)


def head_layer(
    section: Section, heads: blocks.Heads, method: str, *, is_first: bool, has_qk_norm: bool
) -> arch.Layer:
    """One layer. The first of EAGLE has no input norm; the first of EAGLE-3 sees two hidden states at once."""
    hidden, names = heads.hidden_size, list(blocks.TWO_NORMS)
    qkv, out = blocks.attention(heads, qkv_bias=section.boolean("attention_bias", False))
    if method == EAGLE3:
        names.append("hidden_norm")
        if is_first:
            qkv = replace(qkv, in_features=2 * hidden)
    elif is_first:
        names.remove("input_layernorm")
    mlp = blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    modules: list[arch.Module] = [qkv, out, *mlp, *blocks.norms(hidden, *names)]
    if has_qk_norm:
        modules += blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm")
    return arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))


def head_modules(
    root: Section, section: Section, heads: blocks.Heads, method: str, target: arch.Architecture
) -> tuple[arch.Module, ...]:
    """The projection of hidden states, and for EAGLE-3 the last norm and a vocabulary of its own."""
    hidden = heads.hidden_size
    if method != EAGLE3:
        return (blocks.replicated("model.fc", 2 * hidden, hidden),)
    modules: list[arch.Module] = [blocks.norm("model.norm", hidden)]
    projection = auxiliary_projection(root, section, heads, target)
    if projection is not None:
        modules.append(projection)
        if section.boolean("norm_before_fc", root.boolean("norm_before_fc", False)):
            modules.append(blocks.norm("model.input_norm", projection.in_features))
    places = (place.optional_integer("draft_vocab_size", minimum=1) for place in (root, section))
    vocabulary = next(filter(None, places), None)
    if vocabulary and vocabulary != target.vocab_size:
        modules.append(blocks.head(section, vocab_size=vocabulary))
        modules.append(arch.Parameter(name="draft_id_to_target_id", replicated=vocabulary, dtype="int64"))
    return tuple(modules)


def auxiliary_projection(
    root: Section, section: Section, heads: blocks.Heads, target: arch.Architecture
) -> arch.Linear | None:
    """From the hidden states of some layers of the target to one; None where the head uses only the last."""
    eagle = section.optional_section("eagle_config") or root.optional_section("eagle_config")
    if eagle is not None and not eagle.boolean("use_aux_hidden_state", True):
        return None
    places = filter(None, (root, section, eagle))
    lists = (place.integers("eagle_aux_hidden_state_layer_ids") for place in places)
    layers = next((found for found in lists if found is not None), ())
    count = section.optional_integer("num_aux_hidden_states", minimum=1, maximum=4096)
    states = count or len(layers) or AUXILIARY_STATES
    width = section.integer("target_hidden_size", root.integer("target_hidden_size", target.hidden_size))
    return blocks.replicated("model.fc", states * width, heads.hidden_size)


SLIDING: Final = "sliding_attention"
FLASH: Final = ("DFlashDraftModel", "MuseGlimmerAssistantModel", "DFlashMuseGlimmerAssistantModel")
SPARK: Final = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "DSparkDraftModel")
"""Drafts with Qwen 3's layers. Source: vllm/model_executor/models/registry.py:_SPECULATIVE_DECODING_MODELS (0.33)."""
SPECULATORS: Final = "dflash"
"""`speculators_model_type` of a DFlash draft. Source: vllm/.../configs/speculators/algos.py (0.32)."""


def read_parallel(config: ModelConfig, target: arch.Architecture, max_model_len: int) -> Draft:
    """A DFlash or DSpark draft for `target`, whose embedding it uses, and lm_head where the vocabulary is the same.

    Raises ModelError `unknown-architecture` for drafts of other layers.

    Source: vllm/model_executor/models/qwen3_dflash.py (0.22.1, 0.26.0, 0.33.0), qwen3_dspark.py (0.26.0, 0.33.0).
    """
    section, names = head_section(config), config.architectures
    is_spark = any(name in SPARK for name in names)
    is_flash = (
        any(name in FLASH for name in names) or config.root.get("speculators_model_type") == SPECULATORS
    )
    if not (is_spark or is_flash) or section.model_type.startswith("deepseek"):
        raise ModelError(
            "unknown-architecture",
            field="speculative_config.model",
            architecture=", ".join(names) or section.model_type,
            reason="of drafts for several tokens, DFlash and DSpark with Qwen 3's layers are read",
        )
    heads, hidden = blocks.read_heads(section), section.integer("hidden_size")
    bias, own = section.boolean("attention_bias", False), draft_section(config, section)
    modules: tuple[arch.Module, ...] = (
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *blocks.gated_mlp(hidden, section.integer("intermediate_size")),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    )
    if own.boolean("attention_sink_bias", section.boolean("add_swa_attention_sink_bias", False)):
        modules += (arch.Parameter(name="self_attn.attention_sink_bias", sharded=heads.num_heads),)
    quantization = read_quantization(config, None)
    copies = () if quantization.method != NOT_QUANTIZED else (context_projection(heads),)
    positions = max(section.integer("max_position_embeddings", 2048), max_model_len)
    tables = (rope.table(heads.head_dim, positions) for rope in read_ropes(section))
    return Draft(
        layers=tuple(
            arch.Layer(modules=modules, caches=(blocks.cache_of(heads, window),), loading=copies)
            for window in draft_windows(section, own)
        ),
        quantization=quantization,
        modules=(
            *around(config, section, own, target),
            *(sequential(section) if is_spark else ()),
        ),
        embedding=first_embedding(target),
        rotary_tables=tuple(table for table in tables if table not in target.rotary_tables),
    )


def draft_section(config: ModelConfig, section: Section) -> Section:
    """The object of a config with a draft's own keys; an empty one without it."""
    places = (place.optional_section("dflash_config") for place in (section, config.root))
    return next(filter(None, places), None) or Section({}, "dflash_config")


def context_projection(heads: blocks.Heads) -> arch.Linear:
    """The copy of a layer's projection to keys and values that all layers' projections of the context are stacked in.

    Source: vllm/model_executor/models/qwen3_dflash.py:DFlashQwen3Model._build_context_kv_buffers (0.26.0, 0.33.0).
    """
    return arch.Linear(
        name="self_attn.context_kv",
        in_features=heads.hidden_size,
        outputs=(arch.Output(units=heads.num_kv_heads, width=2 * heads.head_dim, replicable=True),),
        split=arch.Split.COLUMN,
        quantizable=False,
    )


def draft_windows(section: Section, own: Section) -> tuple[int | None, ...]:
    """The window of each layer, None without one.

    Source: vllm/model_executor/models/qwen3_dflash.py:_resolve_layer_attention (0.26.0, 0.33.0).
    """
    count = section.layers()
    kinds = section.words("layer_types", ("full_attention", SLIDING), count)
    if kinds is None or (own.boolean("use_swa", False) and SLIDING not in kinds):
        kinds = (SLIDING if own.boolean("use_swa", False) else "full_attention",) * count
    if SLIDING not in kinds:
        return (None,) * count
    window = own.optional_integer("swa_window_size", minimum=1) or section.integer("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def around(
    config: ModelConfig, section: Section, own: Section, target: arch.Architecture
) -> tuple[arch.Module, ...]:
    """The projection of the target's hidden states, norms, a vector for masked tokens, a vocabulary of its own."""
    hidden = section.integer("hidden_size")
    modules: list[arch.Module] = [
        *blocks.norms(hidden, "model.norm", "model.hidden_norm"),
        arch.Parameter(name="model.mask_embedding", replicated=hidden),
    ]
    if own.boolean("use_aux_hidden_state", section.boolean("use_aux_hidden_state", True)):
        keys = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "dspark_target_layer_ids")
        places = (config.root, section, own)
        lists = (place.integers(key) for key in (*keys, "target_layer_ids", "layer_ids") for place in places)
        states = len(next(filter(None, lists), ())) or section.layers()
        width = section.integer("target_hidden_size", config.root.integer("target_hidden_size", hidden))
        modules.append(blocks.replicated("model.fc", states * width, hidden))
    vocabulary = draft_vocabulary(config.root, section)
    if vocabulary and vocabulary != target.vocab_size:
        modules.append(blocks.head(section, vocab_size=vocabulary))
        modules.append(arch.Parameter(name="draft_id_to_target_id", replicated=vocabulary, dtype="int64"))
    return tuple(modules)


def draft_vocabulary(*places: Section) -> int | None:
    """Tokens that a draft chooses from, where its config says so."""
    sizes = (place.optional_integer("draft_vocab_size", minimum=1) for place in places)
    return next(filter(None, sizes), None)


def sequential(
    section: Section, rank_key: str = "markov_rank", *, has_confidence: bool = False
) -> tuple[arch.Module, ...]:
    """Modules by which DSpark chooses one token after another: a bias of low rank, and a head of confidence.

    That of a checkpoint with the draft inside sees the rank of the bias too, and has no bias of its own.

    Source: vllm/model_executor/models/qwen3_dspark.py:DSparkMarkovHead, DSparkConfidenceHead (0.33.0).
    """
    rank, vocabulary = section.integer(rank_key), section.integer("vocab_size")
    padded = -(-(draft_vocabulary(section) or vocabulary) // 64) * 64
    modules = [
        arch.Parameter(name="model.markov_head.markov_w1", replicated=vocabulary * rank),
        arch.Parameter(name="model.markov_head.markov_w2", replicated=padded * rank),
    ]
    if section.boolean("enable_confidence_head", has_confidence):
        sees_rank = has_confidence or section.boolean("confidence_head_with_markov", False)
        sees = section.integer("hidden_size") + rank * sees_rank
        values = sees if has_confidence else sees + 1
        modules.append(arch.Parameter(name="model.confidence_head.proj", replicated=values, dtype="float32"))
    return tuple(modules)


def read_medusa(config: ModelConfig) -> Draft:
    """Medusa's heads: layers as wide as the model, and an output head each, none of them quantized.

    Source: vllm/model_executor/models/medusa.py, transformers_utils/configs/medusa.py (0.11.0, 0.32.0).
    """
    root = config.root
    named = {part: next((key for key in root.raw if "num" in key and part in key), part) for part in COUNTS}
    heads, layers = (root.integer(named[part], default, maximum=1024) for part, default in COUNTS.items())
    hidden, vocabulary = root.integer("hidden_size", 4096), root.integer("vocab_size", 32_001)
    bias, shares = root.boolean("medusa_fc_bias", False), root.boolean("original_lm_head", False)
    block = blocks.replicated("blocks", hidden, hidden, bias=bias, quantizable=False)
    if shares:
        vocabulary = root.integer("truncated_vocab_size", vocabulary)
    head = arch.VocabEmbedding(name="lm_head", num_embeddings=vocabulary, embedding_dim=hidden)
    modules = (block,) * (heads * layers) + (head,) * (1 if shares else heads)
    return Draft(layers=(), quantization=Quantization(), modules=modules)


COUNTS: Final[Mapping[str, int]] = {"heads": 5, "layers": 1}
"""Beginnings of the keys for the numbers of heads and layers, and the class's defaults."""


def read_mlp_speculator(config: ModelConfig) -> Draft:
    """An MLP speculator: embedding, projection, norm and head of each step. One rank has it whole.

    Source: vllm/model_executor/models/mlp_speculator.py, transformers_utils/configs/mlp_speculator.py (0.10.2).
    """
    root = config.root
    width, vocabulary = root.integer("emb_dim", 4096), root.integer("vocab_size", 32_000)
    inner = root.integer("inner_dim", 0, minimum=0) or width
    steps, tied = root.integer("n_predict", 3, maximum=64), root.boolean("tie_weights", False)
    table = arch.Parameter(name="emb", replicated=-(-vocabulary // 64) * 64 * inner)
    modules: list[arch.Module] = [arch.Parameter(name="proj.0", replicated=width * inner)]
    modules += [arch.Parameter(name="proj", replicated=inner * inner)] * (1 if tied else steps - 1)
    for _ in range(1 if tied else steps):
        modules += [table, table, arch.Parameter(name="ln", replicated=2 * inner)]
    return Draft(layers=(), quantization=Quantization(), modules=tuple(modules))
