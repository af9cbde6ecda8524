"""Models as layers, each a list of parameter modules and of the cache states that a request keeps there.

Weight bytes per rank, bytes per page and blocks per request are folds over this one list. A family reader in
`kvcore.model.families` turns a config.json into an `Architecture`; nothing else knows about config keys.

Names of modules are those of the checkpoint with the layer's prefix, because that is what quantization ignore lists are
written in. A module that the engine fuses from several checkpoint tensors (gate_up_proj) names them in `parts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar

from msgspec import Struct

from kvcore.base.errors import Notice
from kvcore.base.kept import Keeper, kept
from kvcore.model.caches import CacheState, RecurrentState


class Split(StrEnum):
    """How tensor parallelism cuts a module."""

    REPLICATED = "replicated"
    COLUMN = "column"
    """Output features are divided."""
    ROW = "row"
    """Input features are divided."""


class Output(Struct, frozen=True, kw_only=True):
    """Rows of a linear layer's weight: `units` groups (heads, or single features) of `width` rows.

    `replicable`: with more ranks than units each rank keeps one whole unit (KV heads); otherwise `units` must be
    divisible by the tensor parallel size.
    """

    units: int
    width: int = 1
    replicable: bool = False


class Linear(Struct, frozen=True, kw_only=True):
    """A linear layer. `outputs` are the fused parts, in order."""

    name: str
    in_features: int
    outputs: tuple[Output, ...]
    split: Split = Split.REPLICATED
    bias: bool = False
    parts: tuple[str, ...] = ()
    quantizable: bool = True
    dtype: str = ""
    """A torch dtype name, or "" for the model's."""
    whole_with_expert_ranks: bool = False
    """Stored whole by every rank when experts are sharded over tensor and data parallel ranks at once."""
    whole_unless_divided: int = 0
    """Heads of an encoder that every rank stores whole where the ranks do not divide them; 0 without such a rule."""
    row_multiple: int = 1
    """A rank's rows are padded to a multiple of this."""


class Parameter(Struct, frozen=True, kw_only=True):
    """A plain tensor that no quantizer touches: norms, convolutions, A_log, routing bias.

    `sharded` is the product of the dimensions that tensor parallelism divides (1: replicated whole),
    `replicated` the product of the others.
    """

    name: str
    replicated: int = 1
    sharded: int = 1
    dtype: str = ""
    experts: int = 0
    """How many routed experts it is of, where it is: expert parallelism distributes whole ones over ranks."""
    is_unsure: bool = False
    """Whole on every rank because its name does not tell how it is cut."""


class Experts(Struct, frozen=True, kw_only=True):
    """The routed experts of one layer, as the engine's fused MoE stores them.

    Without expert parallelism every rank stores all experts, each 1/tp wide; with it whole experts are distributed
    over tp × dp ranks.
    """

    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    gated: bool = True
    bias: bool = False
    quantizable: bool = True
    top_k: int = 1


class VocabEmbedding(Struct, frozen=True, kw_only=True):
    """A vocabulary-parallel table (embedding or lm_head), padded to a multiple of `padding` rows."""

    name: str
    num_embeddings: int
    embedding_dim: int
    padding: int = 64
    bias: bool = False
    quantizable: bool = False
    dtype: str = ""


Module: TypeAlias = Linear | Parameter | Experts | VocabEmbedding


def elements(module: Module) -> int:
    """Numbers in a module of the whole model, its padding apart.

    Example:
        >>> elements(VocabEmbedding(name="lm_head", num_embeddings=1000, embedding_dim=64))
        64000
        >>> elements(Experts(name="experts", num_experts=8, hidden_size=64, intermediate_size=128))
        196608
    """
    match module:
        case Linear():
            rows = sum(output.units * output.width for output in module.outputs)
            return rows * module.in_features + (rows if module.bias else 0)
        case Parameter():
            return module.replicated * module.sharded
        case Experts():
            rows = (2 if module.gated else 1) * module.intermediate_size
            per_expert = (rows + module.intermediate_size) * module.hidden_size
            return module.num_experts * (per_expert + (rows + module.hidden_size if module.bias else 0))
        case VocabEmbedding():
            return module.num_embeddings * (module.embedding_dim + (1 if module.bias else 0))


class Layer(Struct, frozen=True, kw_only=True):
    """One decoder layer, its modules' names relative. Equal layers should be the same object: folds count them once."""

    modules: tuple[Module, ...]
    caches: tuple[CacheState, ...] = ()
    loading: tuple[Linear | Parameter, ...] = ()
    """Copies that loading adds for good: those that latent attention decodes with."""


class RotaryTable(Struct, frozen=True, kw_only=True):
    """A cos/sin cache: a buffer that counts as loaded weights, not as a parameter."""

    max_positions: int
    rotary_dim: int
    dtype: str = ""
    is_plain: bool = False
    """Neither scaled nor of several axes: the engine's `RotaryEmbedding` itself, not one of its subclasses."""


class MixtureOfExperts(Struct, frozen=True, kw_only=True):
    """Sizes of the expert layers, for activations and graphs."""

    num_experts: int
    top_k: int
    moe_intermediate_size: int
    shared_intermediate_size: int = 0


class TokenChoice(Struct, frozen=True, kw_only=True):
    """Tokens that a sparse indexer chooses, and the layers that begin a group with a copy of the choice."""

    topk: int
    groups: tuple[bool, ...] = ()
    is_of_decodes: bool = True


class VisionEncoder(Struct, frozen=True, kw_only=True):
    """An encoder of images as the multimodal profile run sees it."""

    hidden_size: int
    intermediate_size: int
    max_tokens_per_item: int
    patches_per_token: int = 1
    deepstack_levels: int = 0
    """Decoder layers that get features of the encoder added to their input."""
    values_per_patch: int = 588
    """Pixel values that go in: 3 × 14 × 14."""
    unit: int = 0
    """Pixels a side of one token where the processor takes `max_pixels`; 0 elsewhere."""
    draws_video: bool = False
    """Whether the profile run draws a video, of as many frames as the context has room for."""
    pair_tokens: int = 0
    """Tokens of a pair of frames where an image has another number."""
    most_frames: int = 0
    """Most frames of a video that is drawn, where the class has its own bound."""


class AudioEncoder(Struct, frozen=True, kw_only=True):
    """An encoder of audio as the multimodal profile run sees it. A recording runs in chunks."""

    hidden_size: int
    intermediate_size: int
    tokens_per_chunk: int
    """Tokens that the language model gets."""
    positions_per_chunk: int
    """Positions in the encoder's attention and MLPs."""
    values_per_chunk: int
    """Values of the spectrogram, or samples, that go in."""
    chunks_per_item: int = 1
    """Chunks of the longest recording; 0: as many as fit in the context."""
    chunks_at_once: int = 0
    """Most that run together; 0: all."""
    items_per_prompt: int = 0
    """Most recordings of a request; 0: any number."""
    is_whole: bool = False
    """Every rank runs whole layers."""
    windows_per_chunk: int = 0
    """Windows of an encoder that starts with convolutions; then the elements of one, and the most at once."""
    window_elements: int = 0
    most_windows: int = 0
    pair_elements: int = 0
    """Elements a position, where attention multiplies queries with all positions of a block."""


class RopeScaling(Struct, frozen=True, kw_only=True):
    """A rope setup, as far as it changes the length of a request."""

    kind: str = "default"
    """The engine's rope_type: default, linear, yarn, longrope, llama3, ..."""
    factor: float | None = None
    original_max_positions: int | None = None


class ContextLimits(Struct, frozen=True, kw_only=True):
    """Lengths in a config; `kvcore.model.rope` makes a max_model_len of it, by engine version."""

    stated_tokens: int | None
    """The length key that counts; None when the config has none."""
    scalings: tuple[RopeScaling, ...] = ()
    is_already_scaled: bool = False
    """max_position_embeddings already contains the scaling, whatever its type (Gemma 3)."""
    original_max_positions: int | None = None
    """`original_max_position_embeddings` with max_position_embeddings, not inside the rope scaling."""


class SparkDraft(Struct, frozen=True, kw_only=True):
    """A draft in the model's own checkpoint that proposes several tokens at once (DSpark of DeepSeek-V4)."""

    layers: tuple[Layer, ...]
    modules: tuple[Module, ...]
    """Modules next to the layers, under full checkpoint names."""
    tokens: int | None = None
    """How many it proposes where nobody asks for a number."""
    kept_elements: int = 0
    """Of each token, what the model keeps for it while its own last layer runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostTable:
    """A table in the host's memory, an element a byte, with a scale byte for each block of a row. Ranks share its rows
    out."""

    rows: int
    row_bytes: int
    scale_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Architecture(Keeper):
    """A model before any deployment decision.

    Compared by identity, so that caches keyed by it cost nothing: `read_architecture` keeps one object a config.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    num_kv_heads: int
    """KV heads of the whole model; 1 for MLA."""
    head_dim: int
    max_model_len: int
    """The engine's `derived max_model_len` by the newest rules; `context` gives it by version."""
    dtype: str
    """The dtype that `dtype=auto` resolves to, before the card's limits: bfloat16, float16 or float32."""
    layers: tuple[Layer, ...]
    context: ContextLimits = field(default=ContextLimits(stated_tokens=None))
    layer_prefix: str = "model.layers"
    first: tuple[Module, ...] = ()
    """Before the layers, on the first pipeline stage: embeddings. Some classes store them on every stage."""
    every: tuple[Module, ...] = ()
    """On every pipeline stage: encoders, projectors, the head of a model that judges."""
    last: tuple[Module, ...] = ()
    """Behind the layers, on the last pipeline stage: final norm, lm_head. Some classes store them on every stage."""
    tied_embeddings: bool = False
    """lm_head is the embedding: the last pipeline stage stores its own copy."""
    rotary_tables: tuple[RotaryTable, ...] = ()
    moe: MixtureOfExperts | None = None
    token_choice: TokenChoice | None = None
    vision: VisionEncoder | None = None
    audio: AudioEncoder | None = None
    is_multimodal: bool = False
    is_mla: bool = False
    residual_streams: int = 1
    """Copies of the hidden state that the layers pass on and mix (hyper-connections)."""
    draft_layers: tuple[Layer, ...] = ()
    """Multi-token-prediction layers in the checkpoint, loaded only by speculative decoding."""
    draft_prefix: str = ""
    """Their checkpoint prefix without the index, "" when they continue the numbers of the decoder layers."""
    draft_modules: tuple[Module, ...] = ()
    """Modules that those layers share, under their full checkpoint names."""
    host_tables: tuple[HostTable, ...] = ()
    """Tables that stay in the host's memory, where ranks look rows up."""
    drafts_are_quantized: bool = True
    """Whether the quantization of the checkpoint covers them."""
    draft_steps: int = 0
    """Tokens ahead that the draft layers predict, one after another (the engine's n_predict)."""
    spark: SparkDraft | None = None
    is_assumed: bool = False
    """No family reads its class: it is taken for a plain decoder, or read from the headers of its checkpoint."""
    notices: tuple[Notice, ...] = ()
    """Notices about what its reader does not know."""
    uncounted: tuple[str, ...] = ()
    """Parts of the checkpoint that this reader does not count yet, named in a warning."""
    read_as: str = ""
    """The entry of `architectures` that decided, as a model that generates is called; a model_type without one."""
    language_type: str = ""
    """The model_type of the language part, where the config has one."""

    @property
    def num_layers(self) -> int:
        """How many decoder layers the model has, draft layers apart."""
        return len(self.layers)

    @property
    def is_hybrid(self) -> bool:
        """Whether some layer keeps a recurrent state with attention caches."""
        return {isinstance(cache, RecurrentState) for cache in caches_of(self)} == {True, False}


_Part = TypeVar("_Part", Layer, Module)


def by_identity(parts: Sequence[_Part]) -> list[tuple[_Part, int]]:
    """Distinct layer or module objects with their counts, in order of first use."""
    counts = Counter(map(id, parts))
    objects = {id(part): part for part in parts}
    return [(objects[key], count) for key, count in counts.items()]


@kept
def layer_counts(architecture: Architecture) -> tuple[tuple[Layer, int], ...]:
    """Its distinct layer objects with their counts, in order of first use."""
    return tuple(by_identity(architecture.layers))


@kept
def caches_of(architecture: Architecture) -> tuple[CacheState, ...]:
    """The cache states of its layers, each once, in order of first use."""
    return tuple(dict.fromkeys(cache for layer, _ in layer_counts(architecture) for cache in layer.caches))
