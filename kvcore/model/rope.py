"""Rotary position embeddings: as a config declares them, how long a request they allow, stretched by a flag (YaRN)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from packaging.version import Version

from kvcore.errors import ModelError, ScenarioError, shorten
from kvcore.model.architecture import ContextLimits, RopeScaling, RotaryTable
from kvcore.model.config import ModelConfig, Section
from kvcore.versioned import ByRelease, Reviewed, TableFile

LEGACY_TYPES: Final[Mapping[str, str]] = {"su": "longrope", "mrope": "default"}
"""Old spellings. Source: vllm/transformers_utils/config.py:patch_legacy_rope_type (0.32)."""

KEYS_WITH_ORIGINAL: Final = ("yarn", "deepseek_yarn", "deepseek_llama_scaling", "longrope", "llama3")
"""Types whose original_max_position_embeddings falls back to the model's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope(RopeScaling):
    """One rotary setup: of the whole model, or of one layer type."""

    partial_rotary_factor: float = 1.0
    is_multimodal: bool = False
    """mrope: positions have three axes, the table is four times as long."""

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
        return tuple(read_rope(section, value) for value in nested.values())
    return (read_rope(section, written.raw),)


def read_rope(section: Section, raw: Mapping[str, Any]) -> Rope:
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


LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Source: vllm/transformers_utils/model_arch_config_convertor.py:derive_max_model_len_and_key (0.32)."""

UNKNOWN_LENGTH: Final = 2048
"""What the engine assumes when no key names a length. Source: vllm/config/model.py:_get_and_verify_max_len (0.32)."""

ALREADY_SCALED: Final = ("longrope", "llama3")
"""Scaling types whose max_position_embeddings needs no factor, in all versions."""
ALREADY_SCALED_SINCE_0_30: Final = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthRules:
    """What one release makes of a config's lengths; each field is a table of rope.toml, which names its source."""

    rope_parameters: bool
    """`--hf-overrides` says `rope_parameters`, with the base of the rope; before `rope_scaling`."""
    yarn_as_written: bool
    """max_position_embeddings stores as it is written, whatever the factor of the rope."""
    longrope_original: bool
    """The default length of a longrope model is its original one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextTables(Reviewed):
    """rope.toml."""

    rules: ByRelease[LengthRules]


CONTEXT: Final = TableFile("kvcore.model", "rope.toml", ContextTables)


@lru_cache(maxsize=256)
def length_rules(version: Version) -> LengthRules:
    """The rules that apply in `version`."""
    return CONTEXT.load().rules.at(version)


def read_context_limits(section: Section, model_type: str) -> ContextLimits:
    """What a config says about lengths.

    The smallest of `LENGTH_KEYS` counts; a `model_max_length` wins over all of them.
    """
    lengths = [
        value for key in LENGTH_KEYS if (value := section.optional_integer(key, minimum=1)) is not None
    ]
    stated = section.optional_integer("model_max_length", minimum=1) or min(lengths, default=None)
    return ContextLimits(
        stated_tokens=stated,
        scalings=read_ropes(section),
        is_already_scaled="gemma3" in model_type,
        original_max_positions=section.optional_integer("original_max_position_embeddings", minimum=1),
    )


def derived_max_model_len(limits: ContextLimits, version: Version) -> int:
    """The longest request in tokens that the engine accepts without an override.

    Raises ModelError `invalid-config-value` where the scaling leaves less than one token.

    Source: vllm/config/model.py:_get_and_verify_max_len (0.11, 0.28, 0.32).

    Example:
        >>> yarn = RopeScaling(kind="yarn", factor=4.0, original_max_positions=32_768)
        >>> limits = ContextLimits(stated_tokens=131_072, scalings=(yarn,))
        >>> derived_max_model_len(limits, Version("0.28")), derived_max_model_len(limits, Version("0.32"))
        (131072, 131072)
        >>> limits = ContextLimits(stated_tokens=32_768, scalings=(yarn,))
        >>> derived_max_model_len(limits, Version("0.28")), derived_max_model_len(limits, Version("0.32"))
        (131072, 32768)
    """
    length: float = limits.stated_tokens or UNKNOWN_LENGTH
    if limits.is_already_scaled:
        return int(length)
    as_written = length_rules(version).yarn_as_written
    factor = 1.0
    for scaling in limits.scalings:
        if scaling.kind in ALREADY_SCALED or (as_written and scaling.kind in ALREADY_SCALED_SINCE_0_30):
            continue
        factor = scaling.factor if scaling.factor is not None else factor
        if scaling.kind == "yarn" and scaling.original_max_positions is not None:
            length = scaling.original_max_positions
    derived = int(length * factor)
    if derived < 1:
        raise ModelError(
            "invalid-config-value",
            field="config.rope_scaling.factor",
            value=str(factor),
            reason="expected a scaling factor that leaves at least one token",
        )
    return derived


def default_max_model_len(limits: ContextLimits, version: Version) -> int:
    """The max_model_len in tokens when no flag gives one.

    The derived length, except for longrope models from 0.11.2 on: their original length, so that short requests
    keep their quality.

    Source: vllm/config/model.py:_get_and_verify_max_len (0.11, 0.19, 0.32).

    Example:
        >>> longrope = RopeScaling(kind="longrope", original_max_positions=4096)
        >>> limits = ContextLimits(stated_tokens=131_072, scalings=(longrope,), original_max_positions=4096)
        >>> default_max_model_len(limits, Version("0.32")), default_max_model_len(limits, Version("0.11"))
        (4096, 131072)
    """
    derived = derived_max_model_len(limits, version)
    has_longrope = any(scaling.kind == "longrope" for scaling in limits.scalings)
    if has_longrope and length_rules(version).longrope_original:
        return limits.original_max_positions or derived
    return derived


YARN: Final = "yarn"
LARGEST_FACTOR: Final = 64.0
_SPELLINGS: Final = ("rope_parameters", "rope_scaling")
_LENGTH: Final = "max_position_embeddings"


@dataclass(frozen=True, kw_only=True, slots=True)
class Yarn:
    """YaRN by `--hf-overrides`: how far a rope is stretched beyond the length that it was trained for."""

    factor: float
    original_max_position_embeddings: int

    @property
    def max_model_len(self) -> int:
        """The longest request with it, in tokens.

        Example:
            >>> Yarn(factor=4.0, original_max_position_embeddings=32768).max_model_len
            131072
        """
        return int(self.factor * self.original_max_position_embeddings)

    @property
    def text(self) -> str:
        """The same as JSON of one spelling, as a scenario keeps it."""
        return json.dumps({_SPELLINGS[0]: self._values})

    @property
    def _values(self) -> dict[str, Any]:
        return {
            "rope_type": YARN,
            "factor": self.factor,
            "original_max_position_embeddings": self.original_max_position_embeddings,
        }

    def overrides(self, config: ModelConfig, version: Version) -> dict[str, Any]:
        """What `--hf-overrides` says in a release. The base of the rope is the config's own.

        From 0.30 on the engine takes max_position_embeddings as it is written, so it is written.

        Example:
            >>> yarn = Yarn(factor=4.0, original_max_position_embeddings=32768)
            >>> qwen = ModelConfig.from_mapping({"max_position_embeddings": 40960, "rope_theta": 1000000})
            >>> list(yarn.overrides(qwen, Version("0.11.0")))
            ['rope_scaling']
            >>> yarn.overrides(qwen, Version("0.32.0"))["max_position_embeddings"]
            131072
        """
        if not length_rules(version).rope_parameters:
            return {"rope_scaling": self._values}
        values, base = self._values, _rope_base(config)
        if base is not None:
            values["rope_theta"] = base
        length = {_LENGTH: self.max_model_len} if length_rules(version).yarn_as_written else {}
        return {"rope_parameters": values, **length}

    def config(self, config: ModelConfig, version: Version) -> ModelConfig:
        """`config` as the engine then reads it."""
        changed = {key: value for key, value in config.raw.items() if key not in _SPELLINGS}
        return ModelConfig.from_mapping(
            {**changed, **self.overrides(config, version)}, config.hf_quant_config
        )


def _rope_base(config: ModelConfig) -> float | None:
    """`rope_theta` of a config, in either place; None where it has none."""
    nested = config.raw.get(_SPELLINGS[0])
    base = config.raw.get("rope_theta", nested.get("rope_theta") if isinstance(nested, Mapping) else None)
    return base if isinstance(base, int | float) and not isinstance(base, bool) else None


def read_yarn(value: object) -> Yarn:
    """The stretched rope of `--hf-overrides`: its JSON object, or the text of it.

    Raises ScenarioError `invalid-value` for anything else that a config could be overridden with.

    Example:
        >>> rope = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}
        >>> read_yarn({"rope_scaling": rope}).max_model_len
        8192
    """
    try:
        found = json.loads(value) if isinstance(value, str) and len(value) <= 2000 else value
    except (ValueError, RecursionError):
        found = None
    ropes = [found[name] for name in _SPELLINGS if name in found] if isinstance(found, Mapping) else []
    rope = ropes[0] if len(ropes) == 1 and isinstance(ropes[0], Mapping) else {}
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    is_known = isinstance(found, Mapping) and not set(found) - {*_SPELLINGS, _LENGTH}
    if (
        not is_known
        or rope.get("rope_type", rope.get("type")) != YARN
        or isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not 1 <= factor <= LARGEST_FACTOR
        or type(original) is not int
        or not 1 <= original <= 1 << 24
    ):
        raise ScenarioError(
            "invalid-value",
            field="hf_overrides",
            value=shorten(value, 80),
            reason="only a rope of type yarn is planned, with factor and original_max_position_embeddings",
        )
    return Yarn(factor=float(factor), original_max_position_embeddings=original)
