"""How a checkpoint names its modules, and how ignore lists and targets match those names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from kvcore.errors import ModelError

WRAPPERS: Final = (
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("language_model.", "model."),
    ("model.visual.", "visual."),
    ("model.vision_tower", "vision_tower"),
    ("model.embed_vision", "embed_vision"),
    ("model.embed_audio", "embed_audio"),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("thinker.model.", "model."),
    ("thinker.lm_head", "lm_head"),
)
"""Prefixes of a language model inside a multimodal checkpoint, and what the bare model calls the same thing."""

EXPERT_PROJECTIONS: Final = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("up_proj", "down_proj"),
)


TOWERS: Final = (
    "visual",
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "audio_tower",
    "multi_modal_projector",
    "mm_projector",
    "vision_adapter",
)
"""Components of the names of encoders and projectors."""


class Kind(StrEnum):
    """What a module is to a quantizer."""

    LINEAR = "linear"
    EXPERTS = "experts"
    VOCAB = "vocab"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleName:
    """A module by its full checkpoint name and, where the engine fuses several tensors, theirs."""

    name: str
    parts: tuple[str, ...] = ()
    kind: Kind = Kind.LINEAR

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the checkpoint's own modules."""
        return self.parts or (self.name,)

    @property
    def expert_shards(self) -> tuple[tuple[str, ...], ...]:
        """The projections of the first expert, by each of the usual spellings."""
        return tuple(tuple(f"{self.name}.0.{part}" for part in parts) for parts in EXPERT_PROJECTIONS)


def is_tower(module: ModuleName) -> bool:
    """Whether the module belongs to an encoder or its projector.

    Example:
        >>> is_tower(ModuleName(name="visual.blocks.0.attn.qkv"))
        True
    """
    return not set(TOWERS).isdisjoint(module.name.split("."))


QUANTIZED_TOWERS: Final = ("vision_tower.transformer.", "multi_modal_projector.linear_")
"""Beginnings of the names in Pixtral and its projector, which the engine quantizes like the language model."""


def is_quantized_tower(module: ModuleName) -> bool:
    """Whether the engine hands its quantization to this part of an encoder.

    Source: vllm/model_executor/models/pixtral.py:PixtralHFTransformer, llava.py:LlavaMultiModalProjector (0.32).

    Example:
        >>> is_quantized_tower(ModuleName(name="vision_tower.transformer.layers.0.attention.o_proj"))
        True
    """
    return module.name.startswith(QUANTIZED_TOWERS)


def canonical(name: str) -> str:
    """`name` without what a multimodal checkpoint wraps around its language model.

    Example:
        >>> canonical("model.language_model.layers.3.mlp.experts")
        'model.layers.3.mlp.experts'
    """
    for wrapper, bare in WRAPPERS:
        if name.startswith(wrapper):
            return bare + name[len(wrapper) :]
    return name


def is_listed(module: ModuleName, names: frozenset[str]) -> bool:
    """Whether a list names the module, one of its parents, or all of its parts; for experts also any of them.

    Source: vllm/model_executor/layers/quantization/utils/quant_utils.py:is_layer_skipped (0.32).

    Example:
        >>> is_listed(ModuleName(name="a.qkv_proj", parts=("a.q_proj", "a.k_proj")), frozenset({"a.q_proj"}))
        False
    """
    if module.name in names:
        return True
    if module.kind is Kind.EXPERTS and any("experts" in name and module.name in name for name in names):
        return True
    return all(has_listed_parent(shard, names) for shard in module.shards)


def has_listed_parent(name: str, names: frozenset[str]) -> bool:
    """Whether a list names `name` or one of the modules it is in."""
    while name:
        if name in names:
            return True
        name = name.rpartition(".")[0]
    return False


def contains_any(module: ModuleName, fragments: Iterable[str]) -> bool:
    """Whether each of the module's names contains one of `fragments` (AWQ's `modules_to_not_convert`)."""
    fragments = tuple(fragments)
    return all(any(fragment in shard for fragment in fragments) for shard in module.shards)


def matches_wildcard(module: ModuleName, patterns: tuple[str, ...]) -> bool:
    """Whether ModelOpt's `exclude_modules` leaves the module out: by name, by fragment or by wildcard.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptQuantConfigBase.is_layer_excluded (0.32).

    Example:
        >>> matches_wildcard(ModuleName(name="model.layers.3.self_attn.o_proj"), ("model.layers.3.self_attn*",))
        True
    """
    if is_listed(module, frozenset(patterns)):
        return True
    name = module.name
    return any(pattern in name or ("*" in pattern and fnmatchcase(name, pattern)) for pattern in patterns)


def matches_pattern(name: str, pattern: str) -> bool:
    """Whether `pattern`, a name or `re:` and a regular expression, is that name.

    Source: vllm/model_executor/layers/quantization/utils/config_utils.py:is_equal_or_regex_match (0.32).

    Example:
        >>> matches_pattern("model.layers.0.self_attn.q_proj", "re:.*self_attn.*")
        True
    """
    if not pattern.startswith("re:"):
        return name == pattern
    return compiled_pattern(pattern[3:]).match(name) is not None


@lru_cache(maxsize=1024)
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled expression of a checkpoint; they are strangers' texts, and a short one can run for hours.

    Raises ModelError `unknown-quantization` for one that does not compile or could take too long.

    Example:
        >>> compiled_pattern(".*mlp.(gate|up)_proj").match("model.layers.0.mlp.up_proj") is not None
        True
    """
    try:
        if is_fast(pattern):
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        pass
    raise ModelError(
        "unknown-quantization",
        field="config.quantization_config",
        method=f"pattern {pattern[:SHOWN_PATTERN]}",
    )


def is_fast(pattern: str) -> bool:
    """Whether matching a module name takes a bounded number of steps, by the choices that the pattern leaves."""
    if len(pattern) > MAX_PATTERN or REPEATED_GROUP.search(pattern):
        return False
    rest = CERTAIN.sub("", LOOKAROUND.sub("(", pattern))
    choices: int = NAME_LENGTH ** len(UNBOUNDED.findall(rest)) * 2 ** rest.count("?")
    while group := INNERMOST.search(rest):
        choices *= 1 + group[0].count("|")
        rest = rest[: group.start()] + rest[group.end() :]
    return choices * (1 + rest.count("|")) <= MAX_CHOICES


MAX_PATTERN: Final = 512
SHOWN_PATTERN: Final = 60
NAME_LENGTH: Final = 80
MAX_CHOICES: Final = 4 * NAME_LENGTH**4
REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
UNBOUNDED: Final = re.compile(r"[*+{]")
INNERMOST: Final = re.compile(r"\([^()]*\)")
LOOKAROUND: Final = re.compile(r"\(\?(?:[:=!]|<[=!])")
CERTAIN: Final = re.compile(r"(?:\\d|\[0-9\])[*+]|\\[^dDwWsS]")
"""Runs of digits, which names keep short, and signs that stand for themselves."""


def matches_patterns(module: ModuleName, patterns: tuple[str, ...]) -> bool:
    """Whether patterns match the module or all of its parts; experts by the projections of the first one.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/utils.py:should_ignore_layer,
    compressed_tensors_moe/compressed_tensors_moe.py:get_moe_method (0.32).
    """
    if any(matches_pattern(module.name, pattern) for pattern in patterns):
        return True
    alternatives = module.expert_shards if module.kind is Kind.EXPERTS else (module.shards,)
    return any(
        all(any(matches_pattern(shard, pattern) for pattern in patterns) for shard in shards)
        for shards in alternatives
    )
