"""Rotary position embeddings as a config declares them: scaling types, factors, and how long the cos/sin table is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvcore.errors import ModelError
from kvcore.model.architecture import RotaryTable
from kvcore.model.config import Section

LEGACY_TYPES: Final[Mapping[str, str]] = {"su": "longrope", "mrope": "default"}
"""Old spellings. Source: vllm/transformers_utils/config.py:patch_legacy_rope_type (0.32)."""

KEYS_WITH_ORIGINAL: Final = ("yarn", "deepseek_yarn", "deepseek_llama_scaling", "longrope", "llama3")
"""Types whose original_max_position_embeddings falls back to the model's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """One rotary setup: of the whole model, or of one layer type."""

    kind: str = "default"
    """The engine's rope_type: default, linear, dynamic, yarn, longrope, llama3, ..."""
    factor: float | None = None
    original_max_positions: int | None = None
    partial_rotary_factor: float = 1.0
    is_multimodal: bool = False
    """mrope: positions have three axes, the table is four times as long."""
    layer_type: str = ""

    def table_positions(self, max_positions: int) -> int:
        """Rows of the cos/sin table.

        linear: positions × factor; yarn: original positions × factor; longrope: a short and a long table;
        multimodal: four times as long.

        Source: vllm/model_executor/layers/rotary_embedding (0.32).

        Example:
            >>> Rope(kind="linear", factor=8.0).table_positions(131_072)
            1048576
        """
        if self.kind == "longrope":
            return max_positions + (self.original_max_positions or max_positions)
        rows = float(max_positions)
        if self.kind in ("yarn", "deepseek_yarn", "deepseek_llama_scaling"):
            rows = (self.original_max_positions or max_positions) * (self.factor or 1.0)
        elif self.kind == "linear":
            rows = max_positions * (self.factor or 1.0)
        return math.ceil(rows * (4 if self.is_multimodal else 1))

    def table(self, head_dim: int, max_positions: int, dtype: str = "") -> RotaryTable:
        """The cos/sin table of this setup."""
        rotary_dim = int(head_dim * self.partial_rotary_factor)
        return RotaryTable(
            max_positions=self.table_positions(max_positions),
            rotary_dim=rotary_dim,
            dtype=dtype,
            is_plain=self.kind == "default" and not self.is_multimodal,
        )


def read_ropes(section: Section) -> tuple[Rope, ...]:
    """The rotary setups of `section`: one, or one per layer type.

    `rope_parameters` is the newer spelling of `rope_scaling`; a scaling given there wins.
    """
    written = section.optional_section("rope_scaling") or section.optional_section("rope_parameters")
    if written is None or not written.raw:
        return (read_rope(section, {}),)
    nested = {key: value for key, value in written.raw.items() if isinstance(value, Mapping)}
    if nested and not any(key in written.raw for key in ("rope_type", "type", "rope_theta")):
        return tuple(read_rope(section, value, layer_type=key) for key, value in nested.items())
    return (read_rope(section, written.raw),)


def read_rope(section: Section, raw: Mapping[str, Any], layer_type: str = "") -> Rope:
    """One rotary setup from its JSON object."""
    values = Section(raw, f"{section.path}.rope_scaling", "")
    kind = values.string("rope_type", values.string("type", "default"))
    kind = LEGACY_TYPES.get(kind, kind)
    factor = None if values.get("factor") is None else values.number("factor")
    if factor is not None and not 0 < factor <= 4096:
        raise values.invalid("factor", factor, "expected a scaling factor above 0")
    original = values.optional_integer("original_max_position_embeddings", minimum=1)
    if original is None and kind in KEYS_WITH_ORIGINAL:
        original = section.optional_integer("original_max_position_embeddings", minimum=1)
        if original is None:
            original = section.optional_integer("max_position_embeddings", minimum=1)
    if kind in ("linear", "yarn") and factor is None:
        raise ModelError("missing-config-key", field=f"{values.path}.factor", key="factor")
    return Rope(
        kind=kind,
        factor=factor,
        original_max_positions=original,
        partial_rotary_factor=partial_rotary_factor(section, values),
        is_multimodal=values.get("mrope_section") is not None,
        layer_type=layer_type,
    )


def partial_rotary_factor(section: Section, values: Section) -> float:
    """The share of each head that is rotated, by any of its spellings; 1 when the config names none."""
    for place in (values, section):
        for name in ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"):
            if place.get(name) is not None:
                share = place.number(name)
                if not 0 < share <= 1:
                    raise place.invalid(name, share, "expected more than 0 and at most 1")
                return share
    return 1.0
