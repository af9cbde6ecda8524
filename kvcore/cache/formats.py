"""Storage formats of keys and values in the cache: `formats.toml`, by the engine's name of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from kvcore.errors import EngineRefusalError
from kvcore.units import ceil_div, round_up
from kvcore.versioned import Bounds, Reviewed, Source, TableFile

Bits = Annotated[int, Bounds(1, 64)]
Bytes = Annotated[int, Bounds(0, 1 << 20)]


@dataclass(frozen=True, kw_only=True, slots=True)
class KvFormat:
    """How one head of one token is stored; formats.toml says what each field means."""

    source: Source
    key_bits: Bits
    value_bits: Bits
    key_overhead_bytes: Bytes = 0
    value_overhead_bytes: Bytes = 0
    scale_group: Annotated[int, Bounds(0, 1024)] = 0
    slot_multiple: Annotated[int, Bounds(1, 1024)] = 1
    boundary_layers: Annotated[int, Bounds(0, 64)] = 0
    """How many attention layers at each end of the model stay in the model's dtype."""
    latent_bytes: Bytes = 0

    def head_bytes(self, head_size: int, head_size_v: int) -> int:
        """Bytes of key and value of one head of one token.

        Example:
            >>> kv_format("turboquant_4bit_nc").head_bytes(128, 128)
            134
        """
        key = ceil_div(head_size * self.key_bits, 8) + self.key_overhead_bytes
        value = ceil_div(head_size_v * self.value_bits, 8) + self.value_overhead_bytes if head_size_v else 0
        if self.scale_group:
            key += head_size // self.scale_group
            value += head_size_v // self.scale_group
        return round_up(key + value, self.slot_multiple)

    def latent_vector_bytes(self, size: int) -> int:
        """Bytes of one token's latent vector of `size` elements.

        Example:
            >>> [kv_format(name).latent_vector_bytes(576) for name in ("bfloat16", "fp8_e4m3", "fp8_ds_mla")]
            [1152, 576, 656]
        """
        return self.latent_bytes or ceil_div(size * self.key_bits, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatTables(Reviewed):
    """formats.toml."""

    formats: Mapping[str, KvFormat]


FORMATS: Final = TableFile("kvcore.cache", "formats.toml", FormatTables)


def kv_format(kv_cache_dtype: str) -> KvFormat:
    """The format that the engine calls `kv_cache_dtype`.

    Raises EngineRefusalError for a name it does not know.
    """
    found = FORMATS.load().formats.get(kv_cache_dtype)
    if found is None:
        raise EngineRefusalError("unknown-kv-cache-dtype", field="kv_cache_dtype", value=kv_cache_dtype)
    return found
