"""The quantization of a checkpoint: which format each of its modules is stored in, and its bytes on a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvcore.base.errors import ModelError
from kvcore.base.kept import Keeper
from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, ChunkedLocal, FullAttention, Mla, SlidingWindow
from kvcore.model.config import Section
from kvcore.model.quantization.formats import UNQUANTIZED, Format
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
    """Bits, group and block, for people."""
    format_of: FormatOf = lambda module: UNQUANTIZED
    depends_on_layer: bool = False
    """Whether a module's format depends on the index of its layer; then a fold must ask for every layer."""
    kv_cache_dtype: str = ""
    """The KV cache dtype that the checkpoint declares, "" when it declares none."""
    attention_scale_bytes: int = 0
    """Scales of queries, keys and values that are parameters of an attention layer until it is loaded."""
    mla_scale_bytes: int = 0
    """The scales of a latent attention layer."""
    quantizes_embeddings: bool = False
    """Whether embedding and lm_head are stored in the format, whatever the model's class hands to a quantizer."""
    spread: float = 0.0
    """Share by which the bytes of all weights may be off either way, where the format does not settle them."""
    _formats: dict[tuple[str, Kind], Format] = field(default_factory=dict, repr=False)

    def format_for(self, module: arch.Linear | arch.Experts | arch.VocabEmbedding, name: str) -> Format:
        """The format of a module by its full checkpoint name, asked for once."""
        is_vocab = isinstance(module, arch.VocabEmbedding)
        may_be = module.quantizable or (is_vocab and self.quantizes_embeddings)
        if self.method == NOT_QUANTIZED or not may_be:
            return UNQUANTIZED
        kind = Kind.VOCAB if is_vocab else Kind.EXPERTS if isinstance(module, arch.Experts) else Kind.LINEAR
        known = self._formats.get((name, kind))
        if known is None:
            prefix = name.removesuffix(module.name)
            parts = module.parts if isinstance(module, arch.Linear) else ()
            asked = ModuleName(
                name=canonical(name), parts=tuple(canonical(prefix + part) for part in parts), kind=kind
            )
            known = self._formats[name, kind] = self.format_of(asked)
        return known

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
