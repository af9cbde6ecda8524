"""Tensors known by their names and shapes alone: their module, and how tensor parallelism cuts them (named.toml)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.headers import DTYPE_BITS, Tensors
from kvcore.model.parts.blocks import Heads
from kvcore.tables import Record, TableFile

TABLE: Final = "named.toml"
Words: TypeAlias = tuple[str, ...]


class Names(Record, frozen=True, kw_only=True):
    """named.toml."""

    embedding: Words
    head: Words
    key: Words
    value: Words
    key_norm: Words
    query_key_value: Words
    latent_down: Words
    latent_norm: Words
    latent_up: Words
    indexer_key: Words
    inputs_first: Words
    column: Words
    row: Words
    whole: Words
    routers: Words
    recurrent: Words
    decay: Words
    delta: Words
    top_k_keys: Words
    expert_width_keys: Words
    state_keys: Words
    key_width_keys: Words
    state_dtype_keys: Words
    chunk_keys: Words
    window_keys: Words


NAMES: Final = TableFile("kvcore.model.parts", TABLE, Names).load()
_COLUMNS: Final = frozenset(
    (*NAMES.column, *NAMES.key, *NAMES.value, *NAMES.query_key_value, *NAMES.latent_up)
)
_KINDS: Final = re.compile(
    r"(?:^|[._])(weight(?:_[a-z0-9_]+)?|bias|qweight|qzeros|scales|g_idx|blocks|input_scale|[kqv]_scale)(?:\.|$)"
)
"""Kinds of a module's tensors: its weight, its bias, or a part of a storage format."""
MATRICES: Final = frozenset(("", "weight", "qweight", "weight_packed"))
"""Kinds that are the matrix itself; the others are scales, zero points and the like."""
OWN_KINDS: Final = frozenset((*MATRICES, "bias"))
"""Kinds that the engine's module has itself, whatever stores them."""
_INPUTS_FIRST: Final = frozenset(("qweight", "qzeros", "scales"))
"""Input features come first in these, of GPTQ and AWQ, and output features last."""
FLOATS: Final[Mapping[str, str]] = {"F16": "", "BF16": "", "F32": "float32"}
"""Dtypes of weights that are not quantized. Sixteen bits become the model's dtype."""
_BY_BITS: Final[Mapping[int, str]] = {4: "uint8", 6: "uint8", 8: "uint8", 16: "", 32: "int32", 64: "int64"}


@dataclass(frozen=True, eq=False)
class Part:
    """Tensors of one kind, by their names."""

    tensors: Tensors

    @cached_property
    def kind(self) -> str:
        """Weight, bias, or a part of a storage format; "" for a tensor without such an ending."""
        found = _KINDS.search(self.tensors.name)
        return "" if found is None else found[1]

    @cached_property
    def path(self) -> Words:
        """The module's words."""
        found = _KINDS.search(self.tensors.name)
        return tuple((self.tensors.name if found is None else self.tensors.name[: found.start()]).split("."))

    @property
    def module(self) -> str:
        """The last of them."""
        return self.path[-1]

    @property
    def full_name(self) -> str:
        """Its name without the first number."""
        return ".".join(filter(None, (self.tensors.prefix, self.tensors.name)))

    @property
    def name(self) -> str:
        """The module's name: in its layer, or the whole one."""
        own = self.tensors.name if self.tensors.layers else self.full_name
        return own.removesuffix(".weight")

    @property
    def is_matrix(self) -> bool:
        """Whether it is a weight of two axes or more."""
        return self.kind in MATRICES and not self.is_vector

    @property
    def is_vector(self) -> bool:
        """Whether at most one axis has more than one element."""
        return sum(size > 1 for size in self.tensors.shape) <= 1

    @property
    def is_whole(self) -> bool:
        """Whether every rank stores it whole, by its name."""
        return self.is_called((*NAMES.whole, *NAMES.latent_down)) or not set(NAMES.routers).isdisjoint(
            self.path
        )

    @property
    def is_column(self) -> bool:
        """Whether its name is that of a projection whose outputs are divided."""
        return self.module in _COLUMNS and not self.is_whole

    @property
    def is_row(self) -> bool:
        """Whether its name is that of a projection whose inputs are divided."""
        return self.module in NAMES.row and not self.is_whole

    @property
    def is_of_experts(self) -> bool:
        """Whether it is of routed experts: by name and number, or a stack of matrices."""
        shape = self.tensors.shape
        is_named = "experts" in self.path and (self.tensors.each > 1 or len(shape) > 1)
        is_stack = len(shape) >= 3 and min(shape) > 2 and (self.is_column or self.is_row)
        return is_named or (is_stack and "conv" not in self.module)

    @property
    def num_experts(self) -> int:
        """How many experts it is of, where it is of experts."""
        shape = self.tensors.shape
        return self.tensors.each if self.tensors.each > 1 else shape[0] if len(shape) > 2 else 1

    def is_called(self, names: Words) -> bool:
        """Whether the module is called one of `names`, which may have several words.

        Example:
            >>> Part(Tensors(prefix="model.layers", name="self_attn.k_proj.weight", layers=(0,), each=1, dtype="BF16",
            ...              shape=(64, 64))).is_called(("k_proj",))
            True
        """
        return any(self.path[-len(words) :] == words for words in (tuple(name.split(".")) for name in names))


def first(parts: Iterable[Part], names: Words) -> Part | None:
    """The first matrix of a module with one of those names."""
    return next((part for part in parts if part.is_matrix and part.is_called(names)), None)


class Cutter(Struct, frozen=True, kw_only=True):
    """Facts that decide how the tensors of one checkpoint are read."""

    hidden_size: int
    main_dtype: str
    """The dtype that becomes the model's: that of most bytes among the unquantized ones."""
    is_quantized: bool
    packed_bits: int
    """Bits of one weight in the packed integers of GPTQ and AWQ."""

    def rows(self, part: Part | None) -> int | None:
        """Output features of a projection, None where its format hides them."""
        if part is None or len(part.tensors.shape) != 2 or part.is_vector:
            return None
        shape, packing = part.tensors.shape, 1
        if part.kind == "qweight":
            if shape[0] == self.hidden_size:
                packing = DTYPE_BITS[part.tensors.dtype] // self.packed_bits
            return shape[1] * packing
        return shape[self._axis(part)]

    def columns(self, part: Part | None) -> int | None:
        """Input features of a projection whose inputs are divided, None where its format hides them."""
        if part is None or len(part.tensors.shape) != 2 or part.is_vector or part.kind != "weight":
            return None
        return part.tensors.shape[self._axis(part)]

    def cut(self, part: Part, heads: Heads | None = None, *, is_encoder: bool = False) -> arch.Module:
        """One tensor as tensor parallelism cuts it, by its name; whole where the name does not tell."""
        elements, dtype = self._stored(part)
        if not self.is_cut(part, is_encoder=is_encoder):
            unsure = self.is_unsure(part) and not is_encoder
            return arch.Parameter(name=part.name, replicated=elements, dtype=dtype, is_unsure=unsure)
        size = part.tensors.shape[self._axis(part)]
        if part.is_vector and part.kind in OWN_KINDS:
            return arch.Parameter(name=part.name, sharded=size, replicated=elements // size, dtype=dtype)
        linear = self._linear(part, heads, size, elements // size, dtype)
        if is_encoder or part.kind not in MATRICES:
            return replace(linear, whole_unless_divided=size)
        return linear

    def is_cut(self, part: Part, *, is_encoder: bool = False) -> bool:
        """Whether tensor parallelism divides it: biases of divided inputs, and vectors of encoders, are whole."""
        is_named = (part.is_column or part.is_row) and part.tensors.elements > 1
        return is_named and not (part.is_vector and (part.is_row or is_encoder))

    def is_unsure(self, part: Part) -> bool:
        """Whether its name tells neither how it is cut nor that it is whole."""
        return not (part.is_vector or part.is_whole or part.is_of_experts or self.is_cut(part))

    def table(self, part: Part, *, is_head: bool = False) -> arch.Module:
        """A table over the vocabulary."""
        elements, dtype = self._stored(part)
        if part.tensors.dtype not in FLOATS:
            return self.cut(part)
        rows = part.tensors.shape[0]
        return arch.VocabEmbedding(
            name=part.name,
            num_embeddings=rows,
            embedding_dim=elements // rows,
            dtype=dtype,
            quantizable=is_head and not dtype and not self.is_quantized,
        )

    def experts(self, parts: list[Part], top_k: int) -> Iterator[arch.Module]:
        """Routed experts of a layer: as the engine has them where there are matrices up and down, else as stored."""
        downs = [part for part in parts if part.is_row and part.is_matrix]
        ups = [part for part in parts if part.is_column and part.is_matrix]
        count = max((part.num_experts for part in downs or parts), default=1)
        size, size_up = (
            sum(part.tensors.elements * part.tensors.each for part in group) for group in (downs, ups)
        )
        is_plain = all(part.tensors.dtype in FLOATS for part in (*downs, *ups))
        if is_plain and len(downs) == 1 and size_up in (size, 2 * size):
            shape = downs[0].tensors.shape
            width = shape[-2] if shape[-1] == self.hidden_size and len(shape) > 2 else shape[-1]
            yield arch.Experts(
                name=".".join(downs[0].path[:-1]),
                num_experts=count,
                hidden_size=size // count // width,
                intermediate_size=width,
                gated=size_up == 2 * size,
                quantizable=not self.is_quantized,
                top_k=top_k,
            )
            parts = [part for part in parts if part not in (*downs, *ups)]
        for part in parts:
            elements, dtype = self._stored(part)
            elements *= part.tensors.each
            is_whole = part.is_vector and (part.is_row or part.kind not in OWN_KINDS)
            whole, shared = (elements, 1) if is_whole else (1, elements)
            yield arch.Parameter(name=part.name, replicated=whole, sharded=shared, dtype=dtype, experts=count)

    def _linear(self, part: Part, heads: Heads | None, size: int, rest: int, dtype: str) -> arch.Linear:
        """`size` features that are divided, with `rest` elements each."""
        is_float = part.kind == "weight" and part.tensors.dtype in FLOATS and len(part.tensors.shape) == 2
        outputs, inputs, split = (arch.Output(units=size),), rest, arch.Split.COLUMN
        if part.is_row:
            outputs, inputs, split = (arch.Output(units=rest),), size, arch.Split.ROW
        elif heads is not None and part.is_called((*NAMES.key, *NAMES.value)):
            outputs = (_copied(size, heads.num_kv_heads),)
        elif heads is not None and part.is_called(NAMES.query_key_value):
            kv = size * heads.num_kv_heads // (heads.num_heads + 2 * heads.num_kv_heads)
            copied = _copied(kv, heads.num_kv_heads)
            return replace(
                self._linear(part, None, size, rest, dtype),
                outputs=(arch.Output(units=size - 2 * kv), copied, copied),
            )
        return arch.Linear(
            name=part.name,
            in_features=inputs,
            outputs=outputs,
            split=split,
            dtype=dtype,
            quantizable=is_float and not dtype and not self.is_quantized,
        )

    def _axis(self, part: Part) -> int:
        """The axis that is divided."""
        shape = part.tensors.shape
        if len(shape) != 2:
            return 0
        inputs = 0 if part.kind in _INPUTS_FIRST else 1
        if part.is_called(NAMES.inputs_first) and self.hidden_size in shape and shape[0] != shape[1]:
            # Some classes with these names store input features first (GPT-2): the hidden size tells which way it is.
            inputs = 0 if (shape[0] == self.hidden_size) != part.is_row else 1
        return inputs if part.is_row else 1 - inputs

    def _stored(self, part: Part) -> tuple[int, str]:
        """Elements of a tensor, and their dtype; bytes where the engine has no such dtype."""
        tensors = part.tensors
        if tensors.dtype in FLOATS:
            return tensors.elements, "" if tensors.dtype == self.main_dtype else FLOATS[tensors.dtype]
        bits = DTYPE_BITS[tensors.dtype]
        return tensors.bytes * 8 // max(bits, 8), _BY_BITS[bits]


def _copied(size: int, kv_heads: int) -> arch.Output:
    """Rows of keys or values, of which each rank keeps whole heads."""
    units = gcd(size, kv_heads)
    return arch.Output(units=units, width=size // units, replicable=True)
