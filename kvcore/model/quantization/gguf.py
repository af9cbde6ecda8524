"""GGUF: the file type in a model's name, the block of each tensor (`gguf.toml`), and how the engine stores it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from kvcore.base.units import ceil_div
from kvcore.model.architecture import Architecture, Experts, Linear, VocabEmbedding
from kvcore.model.quantization.formats import UNQUANTIZED, ExpertsShape, Format, LinearShape
from kvcore.model.quantization.modules import Kind, ModuleName, canonical, is_encoder
from kvcore.model.quantization.packed import BitsPerWeight
from kvcore.model.quantization.scheme import Quantization
from kvcore.tables import Record, Source, TableFile

METHOD: Final = "gguf"

MIXTURE_SPREAD: Final = 0.02
"""Share that a file type that mixes blocks may be off by: an importance matrix, an older llama.cpp or a publisher's own
choice shift a few tensors, none by more than this of the whole."""
SIZE_SPREAD: Final = 0.05
"""Share that an average rate may be off by: the engine pads fused rows to the widest block among them."""

NAME: Final = re.compile(
    r"(?:^|[-._:])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]{1,3})+|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32))$", re.IGNORECASE
)
SHARD: Final = re.compile(r"-\d{1,6}-of-\d{1,6}$")


def file_type(model: str) -> str:
    """The file type that a model's name ends in, "" where it names none.

    Example:
        >>> file_type("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL"), file_type("/m/qwen3-8b-q8_0-00001-of-00002.gguf")
        ('UD-Q4_K_XL', 'Q8_0')
    """
    last = model.strip().rpartition("/")[2]
    if last.lower().endswith(".gguf"):
        last = SHARD.sub("", last[: -len(".gguf")])
    found = NAME.search(last)
    return "" if found is None else found[1].upper()


def names_gguf(model: str) -> bool:
    """Whether the engine takes the name for GGUF: a file, or a repository and a type behind a colon.

    Source: vllm/transformers_utils/gguf_utils.py:is_gguf, engine/arg_utils.py:create_model_config (0.23.0).

    Example:
        >>> names_gguf("unsloth/Qwen3-8B-GGUF:Q4_K_M"), names_gguf("unsloth/Qwen3-8B-GGUF")
        (True, False)
    """
    if model.lower().endswith(".gguf"):
        return True
    repository, colon, kind = model.rpartition(":")
    return bool(colon) and "/" in repository and "/" not in kind and file_type(f"-{kind}") == kind.upper()


class BlockType(Record, frozen=True, kw_only=True):
    """A tensor type: `size` bytes store `weights` numbers of a row. `fallback`: the type of other rows."""

    weights: Annotated[int, Meta(ge=1, le=256)]
    size: Annotated[int, Meta(ge=1, le=256)]
    fallback: str = "F16"

    def row_bytes(self, inputs: int) -> int:
        """Bytes of one row on a rank."""
        return ceil_div(inputs * self.size, self.weights)


class Role(StrEnum):
    """Kinds of tensors that llama.cpp tells apart."""

    EMBEDDING = "embedding"
    OUTPUT = "output"
    VALUES = "values"
    KEYS = "keys"
    ATTENTION_OUTPUT = "attention output"
    DOWN = "down"
    OTHER = "other"


class Rule(Record, frozen=True, kw_only=True):
    """A tensor's type, and the tensors that have it; gguf.toml explains the fields."""

    takes: str
    files: frozenset[str] = frozenset()
    experts: int | None = None
    query_groups: int = 0
    first: int | None = None
    first_part: int | None = None
    takes_turns: bool = False

    def holds(self, name: str, index: int, count: int, facts: Facts) -> bool:
        """Whether it is for the tensor of layer `index` of the `count` that have one, in a file of type `name`."""
        return (
            (not self.files or name in self.files)
            and self.experts in (None, facts.num_experts)
            and self.query_groups <= facts.query_groups
            and (self.first is None or index < self.first)
            and (self.first_part is None or index < count // self.first_part)
            and (not self.takes_turns or takes_more_bits(index, count))
        )


class Mixtures(Record, frozen=True, kw_only=True):
    """The tables of gguf.toml."""

    source: Source
    uniform: frozenset[str]
    types: Mapping[str, BlockType]
    files: Mapping[str, str]
    """The type that most tensors of a file have."""
    aliases: Mapping[str, str]
    roles: Mapping[str, Role]
    rules: Mapping[Role, tuple[Rule, ...]]


MIXTURES: Final = TableFile("kvcore.model.quantization", "gguf.toml", Mixtures)


class Place(Struct, frozen=True, kw_only=True):
    """Place of a module: its layer, and the number of that layer among those with values."""

    layer: int
    values: int
    inputs: int
    """Input features in the whole model; for experts the hidden size."""
    down_inputs: int = 0
    """Input features of the experts' down projection."""


class Facts(Struct, frozen=True, kw_only=True):
    """Facts of a model that llama.cpp looks at besides a tensor's name."""

    num_layers: int
    num_values: int
    """Layers with values."""
    query_groups: int
    num_experts: int
    is_70b: bool
    """80 layers of Llama or Qwen2, whose few value heads get more bits. Source: src/llama-model.cpp (llama.cpp)."""


def role_of(name: str) -> Role:
    """The role of a tensor by its checkpoint name."""
    return MIXTURES.load().roles.get(name.rpartition(".")[2], Role.OTHER)


def takes_more_bits(index: int, count: int) -> bool:
    """The first and last eighth, and every third between.

    Example:
        >>> sum(takes_more_bits(index, 32) for index in range(32))
        16
    """
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def tensor_type(name: str, role: Role, place: Place, facts: Facts, inputs: int) -> str:
    """The type of one tensor in a file of type `name`."""
    mixtures = MIXTURES.load()
    usual = mixtures.files[name]
    if mixtures.types[usual].weights == 1:
        return usual
    if role is Role.OUTPUT:
        return "Q8_0" if usual == "Q8_0" or inputs % mixtures.types[usual].weights else "Q6_K"
    index, count = place.layer, facts.num_layers
    if role is Role.VALUES:
        index, count = place.values, facts.num_values
    rules = (rule for rule in mixtures.rules.get(role, ()) if rule.holds(name, index, count, facts))
    usual = next((rule.takes for rule in rules), usual)
    return "Q5_K" if role is Role.VALUES and facts.is_70b and usual in ("Q3_K", "Q4_K") else usual


def fitting(name: str, inputs: int) -> BlockType:
    """The type, or its fallback for rows of `inputs` that are no multiple of its block.

    Example:
        >>> fitting("Q4_K", 896) == MIXTURES.load().types["Q5_0"]
        True
    """
    types = MIXTURES.load().types
    chosen = types[name]
    if inputs % chosen.weights:
        chosen = types[chosen.fallback]
    return types["F16"] if inputs % chosen.weights else chosen


class Blocks(Format, frozen=True, kw_only=True):
    """The types of each fused part, or of gate, up and down projection of experts.

    Parts of a fused layer are stacked with every row as wide as the widest; one byte a part names its type.

    Source: vllm/.../quantization/gguf.py:GGUFLinearMethod._create_padded_weight_param, GGUFMoEMethod (0.23.0).

    Example:
        >>> q4, q6 = BlockType(weights=256, size=144), BlockType(weights=256, size=210)
        >>> Blocks(types=(q4, q6)).linear_bytes(LinearShape(in_features=256, outputs=(8, 2), element_bytes=2))
        2102
    """

    types: tuple[BlockType, ...]

    def linear_bytes(self, shape: LinearShape) -> int:
        widest = max(kind.row_bytes(shape.in_features) for kind in self.types)
        return shape.out_features * widest + len(self.types)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        up, down = self.types
        rows = shape.shards * shape.intermediate_size * up.row_bytes(shape.hidden_size)
        rows += shape.hidden_size * down.row_bytes(shape.intermediate_size)
        return shape.num_experts * rows + len(self.types) + shape.bias_bytes


def gguf(architecture: Architecture, kind: str) -> Quantization:
    """A GGUF file of type `kind`, one of `files`, of a model.

    Norms, routers and encoders stay in the model's dtype, embeddings do not.

    Source: src/llama-quant.cpp:llama_tensor_get_type_impl of llama.cpp (007dbbf);
    vllm/model_executor/layers/quantization/gguf.py:GGUFConfig.get_quant_method (0.8.5, 0.23.0).
    """
    name = MIXTURES.load().aliases.get(kind, kind)
    places, num_values = places_of(architecture)
    heads, kv_heads = architecture.num_attention_heads, max(1, architecture.num_kv_heads)
    facts = Facts(
        num_layers=architecture.num_layers,
        num_values=num_values,
        query_groups=heads // kv_heads,
        num_experts=architecture.moe.num_experts if architecture.moe else 1,
        is_70b=architecture.num_layers == 80
        and (
            architecture.model_type == "qwen2" or (architecture.model_type == "llama" and heads != kv_heads)
        ),
    )
    embeddings = {
        canonical(module.name): module.embedding_dim
        for module in (*architecture.first, *architecture.last)
        if isinstance(module, VocabEmbedding)
    }
    outputs = {canonical(module.name) for module in architecture.last if isinstance(module, VocabEmbedding)}
    is_output = architecture.tied_embeddings or not outputs

    def type_of(role: Role, place: Place, inputs: int) -> BlockType:
        return fitting(tensor_type(name, role, place, facts, inputs), inputs)

    def format_of(module: ModuleName) -> Format:
        if module.kind is Kind.VOCAB:
            width = embeddings.get(module.name, 0)
            role = Role.OUTPUT if is_output or module.name in outputs else Role.EMBEDDING
            return Blocks(types=(type_of(role, Place(layer=0, values=0, inputs=width), width),))
        place = places.get(module.name)
        if place is None or is_encoder(module):
            return UNQUANTIZED
        if module.kind is Kind.EXPERTS:
            up = type_of(Role.OTHER, place, place.inputs)
            return Blocks(types=(up, type_of(Role.DOWN, place, place.down_inputs)))
        return Blocks(types=tuple(type_of(role_of(part), place, place.inputs) for part in module.shards))

    return Quantization(
        method=METHOD,
        detail=name,
        format_of=format_of,
        depends_on_layer=True,
        quantizes_embeddings=True,
        spread=0.0 if name in MIXTURES.load().uniform else MIXTURE_SPREAD,
    )


def gguf_of_rate(bits: float) -> Quantization:
    """A GGUF file of which only the average bits a weight are known."""
    weights = BitsPerWeight(bits=bits)
    return Quantization(
        method=METHOD,
        detail=f"{bits:.2f} bits on average",
        format_of=lambda module: UNQUANTIZED if is_encoder(module) else weights,
        quantizes_embeddings=True,
        spread=SIZE_SPREAD,
    )


def places_of(architecture: Architecture) -> tuple[Mapping[str, Place], int]:
    """Every linear layer and set of experts of the decoder by its full name; how many layers have value projections."""
    places: dict[str, Place] = {}
    values = 0
    for index in range(architecture.num_layers):
        parts: list[str] = []
        for module in architecture.layers[index].modules:
            name = canonical(f"{architecture.layer_prefix}.{index}.{module.name}")
            if isinstance(module, Linear):
                places[name] = Place(layer=index, values=values, inputs=module.in_features)
                parts += module.parts or (module.name,)
            elif isinstance(module, Experts):
                inputs, down = module.hidden_size, module.intermediate_size
                places[name] = Place(layer=index, values=values, inputs=inputs, down_inputs=down)
        values += any(role_of(part) is Role.VALUES for part in parts)
    return places, values
