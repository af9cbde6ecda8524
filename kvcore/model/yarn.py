"""YaRN by `--hf-overrides`: the rope of a model stretched beyond the length that it was trained for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from packaging.version import Version

from kvcore.errors import ScenarioError, shorten
from kvcore.model.config import ModelConfig
from kvcore.model.context import length_rules

KIND: Final = "yarn"
LARGEST_FACTOR: Final = 64.0
_SPELLINGS: Final = ("rope_parameters", "rope_scaling")
_LENGTH: Final = "max_position_embeddings"
_FIELD: Final = "hf_overrides"


@dataclass(frozen=True, kw_only=True, slots=True)
class Yarn:
    """How far a rope is stretched, and from which length."""

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
            "rope_type": KIND,
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
        or rope.get("rope_type", rope.get("type")) != KIND
        or isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not 1 <= factor <= LARGEST_FACTOR
        or type(original) is not int
        or not 1 <= original <= 1 << 24
    ):
        raise ScenarioError(
            "invalid-value",
            field=_FIELD,
            value=shorten(value, 80),
            reason="only a rope of type yarn is planned, with factor and original_max_position_embeddings",
        )
    return Yarn(factor=float(factor), original_max_position_embeddings=original)
