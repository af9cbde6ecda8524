"""Rotary position embeddings: as a config declares them, how long a request they allow, stretched by a flag (YaRN)."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta
from packaging.version import Version

from kvcore.base.errors import ModelError, ScenarioError, shorten
from kvcore.model.architecture import ContextLimits, RopeScaling, RotaryTable
from kvcore.model.config import ModelConfig, Section
from kvcore.tables import ByRelease, Record, Reviewed, TableFile

RopeKind: TypeAlias = Literal["longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"]
"""Types of rope that keep the length they were trained for."""

OLD_KINDS: Final[Mapping[str, str]] = {"su": "longrope", "mrope": "default"}
"""Old spellings. Source: vllm/transformers_utils/config.py:patch_legacy_rope_type (0.32)."""


class LengthRules(Record, frozen=True, kw_only=True):
    """Rules of one release for a config's lengths; each field is a table of rope.toml, which names its source."""

    rope_parameters: bool
    """Whether `--hf-overrides` has `rope_parameters`, with the base of the rope; `rope_scaling` before."""
    already_scaled: tuple[RopeKind, ...]
    """Types of rope whose max_position_embeddings counts as it is written, whatever their factor."""
    longrope_original: bool
    """The default length of a longrope model is its original one."""


class RopeTables(Reviewed, frozen=True, kw_only=True):
    """rope.toml."""

    rules: ByRelease[LengthRules]
    with_original: tuple[RopeKind, ...]
    """Types whose original_max_position_embeddings falls back to the model's."""
    with_original_table: tuple[RopeKind, ...]
    """Types whose table is as long as the original length times the factor."""
    length_keys: tuple[Annotated[str, Meta(pattern=r"^\w+$")], ...]
    """Keys of which the smallest is the length."""
    unknown_length: Annotated[int, Meta(ge=1, le=1 << 24)]
    """Length that the engine assumes when no key names one."""


TABLES: Final = TableFile("kvcore.model", "rope.toml", RopeTables)


@lru_cache(maxsize=256)
def length_rules(version: Version) -> LengthRules:
    """The rules that apply in `version`."""
    return TABLES.load().rules.at(version)


class Rope(RopeScaling, frozen=True, kw_only=True):
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
        if self.kind in TABLES.load().with_original_table:
            rows = (self.original_max_positions or max_positions) * (self.factor or 1.0)
        elif self.kind == "linear":
            rows = max_positions * (self.factor or 1.0)
        return math.ceil(rows * (4 if self.is_multimodal else 1))

    def table(self, head_dim: int, max_positions: int) -> RotaryTable:
        """The cos/sin table of this setup."""
        return RotaryTable(
            max_positions=self.table_positions(max_positions),
            rotary_dim=int(head_dim * self.partial_rotary_factor),
            is_plain=self.kind == "default" and not self.is_multimodal,
        )


def read_ropes(section: Section) -> tuple[Rope, ...]:
    """The rotary setups of `section`: one, or one per layer type.

    `rope_parameters` is the newer spelling of `rope_scaling`; a scaling given there wins.
    """
    written = section.optional_section("rope_scaling") or section.optional_section("rope_parameters")
    raw = {} if written is None else written.raw
    nested = [value for value in raw.values() if isinstance(value, Mapping)]
    if nested and not any(key in raw for key in ("rope_type", "type", "rope_theta")):
        return tuple(read_rope(section, value) for value in nested)
    return (read_rope(section, raw),)


def read_rope(section: Section, raw: Mapping[str, Any]) -> Rope:
    """One rotary setup from its JSON object."""
    values = Section(raw, f"{section.path}.rope_scaling", "")
    kind = values.string("rope_type", values.string("type", "default"))
    kind = OLD_KINDS.get(kind, kind)
    factor = None if values.get("factor") is None else values.number("factor")
    if factor is not None and not 0 < factor <= 4096:
        raise values.invalid("factor", factor, "expected a scaling factor above 0")
    original = values.optional_integer("original_max_position_embeddings", minimum=1)
    if original is None and kind in TABLES.load().with_original:
        stated = section.optional_integer("original_max_position_embeddings", minimum=1)
        original = stated or section.optional_integer("max_position_embeddings", minimum=1)
    if kind in ("linear", "yarn") and factor is None:
        raise values.missing("factor")
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


def read_context_limits(section: Section, model_type: str) -> ContextLimits:
    """Lengths in a config.

    The smallest of the keys that name a length counts; a `model_max_length` wins over all of them.
    """
    lengths = (section.optional_integer(key, minimum=1) for key in TABLES.load().length_keys)
    shortest = min(filter(None, lengths), default=None)
    stated = section.optional_integer("model_max_length", minimum=1) or shortest
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
    length: float = limits.stated_tokens or TABLES.load().unknown_length
    if limits.is_already_scaled:
        return int(length)
    factor = 1.0
    for scaling in limits.scalings:
        if scaling.kind in length_rules(version).already_scaled:
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
SPELLINGS: Final = ("rope_parameters", "rope_scaling")
LENGTH: Final = "max_position_embeddings"


class Yarn(Record, frozen=True, kw_only=True):
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
        """The parameters as JSON of one spelling, as a scenario keeps it."""
        return json.dumps({SPELLINGS[0]: self._values})

    @property
    def _values(self) -> dict[str, Any]:
        return {
            "rope_type": YARN,
            "factor": self.factor,
            "original_max_position_embeddings": self.original_max_position_embeddings,
        }

    def overrides(self, config: ModelConfig, version: Version) -> dict[str, Any]:
        """The value of `--hf-overrides` in a release. The base of the rope is the config's own.

        From 0.30 on the engine takes max_position_embeddings as it is written, so it is written.

        Example:
            >>> yarn = Yarn(factor=4.0, original_max_position_embeddings=32768)
            >>> qwen = ModelConfig.from_mapping({"max_position_embeddings": 40960, "rope_theta": 1000000})
            >>> list(yarn.overrides(qwen, Version("0.11.0")))
            ['rope_scaling']
            >>> yarn.overrides(qwen, Version("0.32.0"))["max_position_embeddings"]
            131072
        """
        rules = length_rules(version)
        if not rules.rope_parameters:
            return {"rope_scaling": self._values}
        nested, values = config.raw.get(SPELLINGS[0]), self._values
        inner = nested.get("rope_theta") if isinstance(nested, Mapping) else None
        base = config.raw.get("rope_theta", inner)
        if isinstance(base, int | float) and not isinstance(base, bool):
            values["rope_theta"] = base
        length = {LENGTH: self.max_model_len} if YARN in rules.already_scaled else {}
        return {"rope_parameters": values, **length}

    def config(self, config: ModelConfig, version: Version) -> ModelConfig:
        """`config` as the engine then reads it."""
        changed = {key: value for key, value in config.raw.items() if key not in SPELLINGS}
        return ModelConfig.from_mapping(
            {**changed, **self.overrides(config, version)}, config.hf_quant_config, config.headers
        )


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
    ropes = [found[name] for name in SPELLINGS if name in found] if isinstance(found, Mapping) else []
    rope = ropes[0] if len(ropes) == 1 and isinstance(ropes[0], Mapping) else {}
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    is_known = isinstance(found, Mapping) and not set(found) - {*SPELLINGS, LENGTH}
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
