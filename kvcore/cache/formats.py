"""Storage formats of keys and values in the cache: `formats.toml`, read strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from kvcore.errors import CatalogueError, EngineRefusalError
from kvcore.units import ceil_div, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class KvFormat:
    """How one head of one token is stored; formats.toml says what each field means."""

    source: str
    key_bits: int
    value_bits: int
    key_overhead_bytes: int = 0
    value_overhead_bytes: int = 0
    scale_group: int = 0
    slot_multiple: int = 1
    boundary_layers: int = 0
    """How many attention layers at each end of the model stay in the model's dtype."""
    latent_bytes: int = 0

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


def kv_format(kv_cache_dtype: str) -> KvFormat:
    """The format that the engine calls `kv_cache_dtype`.

    Raises EngineRefusalError for a name it does not know.
    """
    found = _formats().get(kv_cache_dtype)
    if found is None:
        raise EngineRefusalError("unknown-kv-cache-dtype", field="kv_cache_dtype", value=kv_cache_dtype)
    return found


@lru_cache(maxsize=1)
def _formats() -> dict[str, KvFormat]:
    text = resources.files("kvcore.cache").joinpath("formats.toml").read_text(encoding="utf-8")
    return read_formats(tomllib.loads(text))


def read_formats(raw: Mapping[str, Any]) -> dict[str, KvFormat]:
    """`formats.toml` as objects; raises CatalogueError for unknown, missing or mistyped keys."""
    fields = {field.name: field for field in dataclasses.fields(KvFormat)}
    required = {"source", "key_bits", "value_bits"}
    formats = {}
    for name, table in raw.items():
        wrong = (set(table) - set(fields)) | (required - set(table))
        wrong |= {key for key in table if type(table[key]) is not (str if key == "source" else int)}
        if wrong:
            raise CatalogueError(
                "invalid-catalogue-entry",
                field=f"formats.toml {name}",
                reason="unknown, missing or mistyped " + ", ".join(sorted(wrong)),
            )
        formats[name] = KvFormat(**table)
    return formats
