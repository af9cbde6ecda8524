"""How long a request the model itself allows: the engine's derived max_model_len, by engine version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from packaging.version import Version

from kvcore.errors import ModelError
from kvcore.model.architecture import ContextLimits, RopeScaling
from kvcore.model.config import Section
from kvcore.model.rope import read_ropes
from kvcore.versioned import ByRelease, Reviewed, TableFile

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
    """What one release makes of a config's lengths; each field is a table of context.toml, which names its source."""

    rope_parameters: bool
    """`--hf-overrides` says `rope_parameters`, with the base of the rope; before `rope_scaling`."""
    yarn_as_written: bool
    """max_position_embeddings stores as it is written, whatever the factor of the rope."""
    longrope_original: bool
    """The default length of a longrope model is its original one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextTables(Reviewed):
    """context.toml."""

    rules: ByRelease[LengthRules]


CONTEXT: Final = TableFile("kvcore.model", "context.toml", ContextTables)


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
        scalings=tuple(
            RopeScaling(
                kind=rope.kind, factor=rope.factor, original_max_positions=rope.original_max_positions
            )
            for rope in read_ropes(section)
        ),
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
