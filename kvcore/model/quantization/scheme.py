"""The quantization of a checkpoint: which format each of its modules is stored in, and its bytes on a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvcore.errors import ModelError
from kvcore.kept import Keeper
from kvcore.model.architecture import (
    CacheState,
    ChunkedLocal,
    Experts,
    FullAttention,
    Linear,
    Mla,
    SlidingWindow,
    VocabEmbedding,
)
from kvcore.model.config import Section
from kvcore.model.quantization.formats import (
    UNQUANTIZED,
    ExpertsShape,
    Format,
    LinearShape,
    Misfit,
    Side,
)
from kvcore.model.quantization.modules import Kind, ModuleName, canonical

FormatOf: TypeAlias = Callable[[ModuleName], Format]

NOT_QUANTIZED: Final = "unquantized"

ATTENTION_SCALE_BYTES: Final = 4 * 2
"""Query, key, value and probability scale in the model's 16 bits.

Source: vllm/.../quantization/kv_cache.py:BaseKVCacheMethod (0.32).
"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Quantization(Keeper):
    """How the modules of a checkpoint are stored.

    Compared by identity: `read_quantization` gives the same object for the same config.
    """

    method: str = NOT_QUANTIZED
    """The engine's name of the method."""
    detail: str = ""
    """What a person should know of it: bits, group, block."""
    format_of: FormatOf = lambda module: UNQUANTIZED
    depends_on_layer: bool = False
    """Whether a module's format depends on the index of its layer; then a fold must ask for every layer."""
    kv_cache_dtype: str = ""
    """The KV cache dtype that the checkpoint declares, "" when it declares none."""
    attention_scale_bytes: int = 0
    """Scales of queries, keys and values that are parameters of an attention layer until it is loaded."""
    mla_scale_bytes: int = 0
    """The same of a latent attention layer."""
    quantizes_embeddings: bool = False
    """Whether embedding and lm_head are stored in the format, whatever the model's class hands to a quantizer."""
    spread: float = 0.0
    """What the bytes of all weights may be off by either way, where the format does not settle them: a share."""
    _formats: dict[tuple[str, Kind], Format] = field(default_factory=dict, repr=False)

    def linear_bytes(
        self, linear: Linear, rank_in: int, rank_out_parts: tuple[int, ...], dtype_bytes: int, name: str
    ) -> int:
        """Bytes of a linear layer's weight and scales on one rank, bias apart.

        `rank_in` input features and `rank_out_parts` output features of each fused part are those of the rank;
        `name` is the full checkpoint name.
        """
        shape = LinearShape(in_features=rank_in, outputs=rank_out_parts, element_bytes=dtype_bytes)
        return self._linear_format(linear, name).linear_bytes(shape)

    def linear_misfit(
        self, linear: Linear, rank_in: int, rank_out_parts: tuple[int, ...], name: str, cut: Side | None
    ) -> Misfit | None:
        """What the engine refuses about a linear layer's shape on one rank, of which `cut` is divided."""
        shape = LinearShape(in_features=rank_in, outputs=rank_out_parts, element_bytes=0)
        return self._linear_format(linear, name).linear_misfit(shape, cut)

    def experts_bytes(
        self,
        experts: Experts,
        rank_experts: int,
        rank_intermediate: int,
        dtype_bytes: int,
        name: str,
        sharing_ranks: int = 1,
    ) -> int:
        """Bytes of the routed experts on one rank, biases and scales with them.

        `rank_experts` experts of `rank_intermediate` features each; `sharing_ranks` ranks share one expert.
        """
        shape = experts_shape(experts, rank_experts, rank_intermediate, dtype_bytes, sharing_ranks)
        return self._experts_format(experts, name).experts_bytes(shape)

    def experts_loading_bytes(
        self,
        experts: Experts,
        rank_experts: int,
        rank_intermediate: int,
        dtype_bytes: int,
        name: str,
        sharing_ranks: int = 1,
    ) -> int:
        """Bytes that loading adds to the experts of one rank for good; negative when it drops some."""
        shape = experts_shape(experts, rank_experts, rank_intermediate, dtype_bytes, sharing_ranks)
        return self._experts_format(experts, name).experts_loading_bytes(shape)

    def experts_misfit(
        self, experts: Experts, rank_intermediate: int, name: str, *, is_cut: bool, refines: bool
    ) -> Misfit | None:
        """What the engine refuses about the width of the experts on one rank."""
        shape = experts_shape(experts, 1, rank_intermediate, 0, 2 if is_cut else 1)
        return self._experts_format(experts, name).experts_misfit(shape, refines=refines)

    def expert_tiles(self, experts: Experts, name: str) -> tuple[int, int]:
        """Multiples that hidden and intermediate size of the experts are padded to on a rank."""
        return self._experts_format(experts, name).expert_tiles

    def vocab_bytes(self, table: VocabEmbedding, rank_rows: int, dtype_bytes: int, name: str) -> int:
        """Bytes of an embedding or lm_head on one rank, bias apart."""
        shape = LinearShape(in_features=table.embedding_dim, outputs=(rank_rows,), element_bytes=dtype_bytes)
        if not (table.quantizable or self.quantizes_embeddings):
            return UNQUANTIZED.linear_bytes(shape)
        return self._format(name, (), Kind.VOCAB).linear_bytes(shape)

    def scale_bytes(self, cache: CacheState) -> int:
        """Bytes of the scale parameters with one attention cache; loading drops them.

        Source: vllm/model_executor/layers/quantization/kv_cache.py:BaseKVCacheMethod,
        compressed_tensors/compressed_tensors.py:CompressedTensorsKVCacheMethod (0.32).
        """
        match cache:
            case FullAttention() | SlidingWindow() | ChunkedLocal():
                return self.attention_scale_bytes
            case Mla():
                return self.mla_scale_bytes
            case _:
                return 0

    def _linear_format(self, linear: Linear, name: str) -> Format:
        if not linear.quantizable:
            return UNQUANTIZED
        prefix = name.removesuffix(linear.name)
        return self._format(name, tuple(prefix + part for part in linear.parts), Kind.LINEAR)

    def _experts_format(self, experts: Experts, name: str) -> Format:
        return self._format(name, (), Kind.EXPERTS) if experts.quantizable else UNQUANTIZED

    def _format(self, name: str, parts: tuple[str, ...], kind: Kind) -> Format:
        key = (name, kind)
        known = self._formats.get(key)
        if known is None:
            module = ModuleName(
                name=canonical(name), parts=tuple(canonical(part) for part in parts), kind=kind
            )
            known = self._formats[key] = self.format_of(module)
        return known


def experts_shape(
    experts: Experts, rank_experts: int, rank_intermediate: int, dtype_bytes: int, sharing_ranks: int
) -> ExpertsShape:
    """The experts as one rank stores them."""
    return ExpertsShape(
        num_experts=rank_experts,
        hidden_size=experts.hidden_size,
        intermediate_size=rank_intermediate,
        element_bytes=dtype_bytes,
        gated=experts.gated,
        bias=experts.bias,
        is_cut=sharing_ranks > 1,
    )


def names_a_layer(names: Iterable[str]) -> bool:
    """Whether a list may treat two layers differently."""
    return any(character.isdigit() for name in names for character in name)


def read_block(section: Section, name: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, or None where the checkpoint names none."""
    block = section.integers(name, minimum=1)
    if block is None:
        return None
    if len(block) != 2:
        raise section.invalid(name, block, "expected two numbers")
    return block[0], block[1]


def unknown(method: str, reason: str) -> ModelError:
    """The error that a quantization is not one this project can count."""
    return ModelError(
        "unknown-quantization", field="config.quantization_config", method=f"{method} ({reason})"
    )
