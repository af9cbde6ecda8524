"""Drafts that propose several tokens at once: DFlash and DSpark with Qwen 3's layers; and heads over the model's last
state that keep no cache: Medusa, MLP speculators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.base.errors import ModelError
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.eagle import Draft, first_embedding, head_section
from kvcore.model.parts import blocks
from kvcore.model.quantization import NOT_QUANTIZED, Quantization, read_quantization
from kvcore.model.rope import read_ropes

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


def sequential(section: Section) -> tuple[arch.Module, ...]:
    """Modules by which DSpark chooses one token after another: a bias of low rank, and a head of confidence.

    Source: vllm/model_executor/models/qwen3_dspark.py:DSparkMarkovHead, DSparkConfidenceHead (0.33.0).
    """
    rank, vocabulary = section.integer("markov_rank"), section.integer("vocab_size")
    padded = -(-(draft_vocabulary(section) or vocabulary) // 64) * 64
    modules = [
        arch.Parameter(name="model.markov_head.markov_w1", replicated=vocabulary * rank),
        arch.Parameter(name="model.markov_head.markov_w2", replicated=padded * rank),
    ]
    if section.boolean("enable_confidence_head", False):
        sees = section.integer("hidden_size") + rank * section.boolean("confidence_head_with_markov", False)
        head = arch.Parameter(name="model.confidence_head.proj", replicated=sees + 1, dtype="float32")
        modules.append(head)
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
