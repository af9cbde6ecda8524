"""`--hf-overrides`: keys that the engine puts into a model's config.json before it reads it, and a stretched rope."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from msgspec import Struct
from packaging.version import Version

from kvcore.base.errors import KvPlannerError, ScenarioError, shorten
from kvcore.base.kept import found_with
from kvcore.base.untrusted import is_json, parse_json_object
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.rope import LENGTH, SPELLINGS, Yarn, read_yarn

MAX_CHARACTERS: Final = 2000
MAX_NAMED: Final = 16
"""Most keys that are tried one by one for an effect."""
SECTION: Final = "_config"
"""Ending of the name of a config inside a config, which is updated key by key where the model has it; every other value
is replaced."""
NOT_PLANNED: Final = ("quantization_config", "compression_config")
"""Keys that say how the files are stored: to plan another storage takes another config."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}")


class Overrides(Struct, frozen=True, kw_only=True):
    """What `--hf-overrides` says."""

    yarn: Yarn | None = None
    """A rope stretched by YaRN, which each release spells in its own way."""
    others: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        """The object as JSON, as a scenario keeps it."""
        rope = {} if self.yarn is None else json.loads(self.yarn.text)
        return json.dumps({**rope, **self.others}, ensure_ascii=False)

    def spelled(self, config: ModelConfig, version: Version) -> dict[str, Any]:
        """The value of the flag in a release."""
        rope = {} if self.yarn is None else self.yarn.overrides(config, version)
        return {**rope, **self.others}

    def applied(self, config: ModelConfig) -> ModelConfig:
        """`config` with all but the rope, which depends on the release.

        Source: vllm/config/model.py:ModelConfig.__post_init__, _apply_dict_overrides (0.11.0, 0.33.0).

        Example:
            >>> said = read_overrides({"text_config": {"num_hidden_layers": 4}, "vocab_size": 8})
            >>> said.applied(ModelConfig.from_mapping({"text_config": {"hidden_size": 64}})).raw["text_config"]
            {'hidden_size': 64, 'num_hidden_layers': 4}
        """
        if not self.others:
            return config
        return ModelConfig.from_mapping(
            _updated(config.raw, self.others), config.hf_quant_config, config.headers
        )


def _updated(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(raw)
    for key, value in changes.items():
        own = raw.get(key)
        if not key.endswith(SECTION) or not isinstance(value, Mapping):
            found[key] = value
        elif isinstance(own, Mapping):
            found[key] = _updated(own, value)
    return found


def read_overrides(value: object) -> Overrides:
    """The overrides in a JSON object, or in the text of one.

    Raises ScenarioError `invalid-value` for what is no plain object, for another rope than one of type yarn, and for
    another storage of the weights.

    Example:
        >>> read_overrides({"index_topk": 1024}).text
        '{"index_topk": 1024}'
    """
    try:
        said = dict(parse_json_object(value, max_bytes=MAX_CHARACTERS)) if isinstance(value, str) else value
    except ScenarioError:
        said = None
    is_plain = isinstance(said, dict) and said and is_json(said) and _is_named(said)
    if not isinstance(said, dict) or not is_plain or len(json.dumps(said)) > MAX_CHARACTERS:
        raise _refused(value, f"it must be a plain JSON object of at most {MAX_CHARACTERS:,} characters")
    if found := next((key for key in NOT_PLANNED if key in said), ""):
        raise _refused(value, f"{found} is not planned: give the config of the other checkpoint")
    if not set(said) & set(SPELLINGS):
        return Overrides(others=said)
    yarn = read_yarn({key: said[key] for key in said if key in (*SPELLINGS, LENGTH)})
    return Overrides(yarn=yarn, others={key: said[key] for key in said if key not in (*SPELLINGS, LENGTH)})


def _is_named(said: Mapping[str, Any]) -> bool:
    return all(_NAME.fullmatch(key) for key, _ in _leaves(said))


def _refused(value: object, reason: str) -> ScenarioError:
    return ScenarioError("invalid-value", field="hf_overrides", value=shorten(value, 80), reason=reason)


def _leaves(said: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each key with the keys that lead to it; those of a config inside the config one by one."""
    for key, value in said.items():
        if isinstance(value, Mapping) and key.endswith(SECTION):
            yield from _leaves(value, (*path, key))
        else:
            yield key, (*path, key)


def without_effect(config: ModelConfig, text: str) -> tuple[str, ...]:
    """Keys of the overrides `text` that change nothing of the architecture that is read from `config`, which has them.

    Example:
        >>> llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
        ...     "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
        ...     "num_key_value_heads": 2, "use_index_cache": True}
        >>> without_effect(ModelConfig.from_mapping(llama), '{"use_index_cache": true, "num_key_value_heads": 2}')
        ('use_index_cache',)
    """
    return found_with(config, (without_effect, text), lambda: _without_effect(config, text))


def _without_effect(config: ModelConfig, text: str) -> tuple[str, ...]:
    leaves = [path for _, path in _leaves(read_overrides(text).others)][:MAX_NAMED]
    whole = _facts(read_architecture(config))

    def changes(path: tuple[str, ...]) -> bool:
        rest = ModelConfig.from_mapping(_removed(config.raw, path), config.hf_quant_config, config.headers)
        try:
            return _facts(read_architecture(rest)) != whole
        except KvPlannerError:
            return True

    return tuple(".".join(path) for path in leaves if not changes(path))


def _removed(raw: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    key, *inner = path
    if not inner:
        return {name: value for name, value in raw.items() if name != key}
    own = raw.get(key)
    return {**raw, key: _removed(own, tuple(inner))} if isinstance(own, Mapping) else dict(raw)


def _facts(architecture: Architecture) -> tuple[Any, ...]:
    return tuple(getattr(architecture, one.name) for one in fields(architecture))
