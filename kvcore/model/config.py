"""A model's config.json as untrusted input: checked once, read by key, compared by content.

Readers never touch the raw JSON. They ask a `Section` (the whole file, its language part, its vision part) for a key
by its usual name; the section knows the spelling variants and the class defaults of that `model_type`, and raises a
coded error that names the key when a value is missing, of a wrong type, negative or absurdly large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cachetools import LRUCache

from kvcore.base.errors import ModelError
from kvcore.base.kept import Keeper
from kvcore.tables import wrong

if TYPE_CHECKING:
    from kvcore.model.headers import Headers

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "torch_dtype": ("dtype",),
}
"""Other spellings of the same thing, in the configs of real checkpoints."""

ESSENTIAL: Final = frozenset(
    {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}
)
"""Keys that every config.json writes at its root; only nested parts leave out what equals the class default."""

DTYPES: Final[Mapping[str, str]] = {
    **{name: name for name in ("bfloat16", "float16", "float32")},
    "half": "float16",
    "float": "float32",
    "float64": "float32",
}
"""Dtypes that a config may name, with the dtype that the engine takes for each."""

LANGUAGE_SECTIONS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a multimodal config keeps its language model."""

MAX_CONFIG_BYTES: Final = 8 << 20
"""Wherever a config comes from. The largest that is published, with a list of unquantized modules, has 3 MB."""
MAX_SHARED_CHARACTERS: Final = 16 << 20
"""Text of the configs that a batch shares: two thousand usual ones, or two of the largest."""
MAX_INTEGER: Final = 2**40
MAX_NUMBER: Final = 1e30
MAX_LAYERS: Final = 1024
"""Eight times those of the deepest model; every layer of a config whose lists name layers is counted by itself."""
MAX_VALUES: Final = 4096
"""Length of a list, above any that is published; keeps an absurd config from filling the memory."""
MAX_NAMES: Final = 1 << 16
"""Length of a list of names, of which a mixture of experts may have one for each matrix of each expert."""

ROOT: Final = "config"
"""The path of the whole file."""

CLASS_DEFAULTS: Final = "class_defaults.json"
"""Class defaults: values that a `model_type`'s config class fills in for keys that config.json leaves out.

Written by tools/class_defaults.py. Its `values` are the keys that decide a size, a count or a length.
"""


@lru_cache(maxsize=1)
def load_class_defaults() -> Mapping[str, Mapping[str, Any]]:
    """All bundled class defaults, by model_type."""
    document = json.loads(Path(__file__).with_name(CLASS_DEFAULTS).read_text("utf-8"))
    for model_type, table in document.items():
        if set(table) != {"source", "values"}:
            raise wrong(f"{CLASS_DEFAULTS}:{model_type}", "expected exactly source and values")
    return MappingProxyType({name: MappingProxyType(table["values"]) for name, table in document.items()})


def class_defaults(model_type: str) -> Mapping[str, Any]:
    """The defaults of one model_type; empty for a type whose class is not known.

    Source: transformers 5.19, the config class of that model_type.

    Example:
        >>> class_defaults("gemma")["head_dim"]
        256
    """
    return load_class_defaults().get(model_type, {})


class Section:
    """One JSON object of a config, read by key. `path` is how errors name it."""

    __slots__ = ("_defaults", "path", "raw")

    def __init__(self, raw: Mapping[str, Any], path: str = ROOT, model_type: str | None = None) -> None:
        self.raw = raw
        self.path = path
        own = str(raw.get("model_type", ""))
        self._defaults = class_defaults(own if model_type is None else model_type)

    @property
    def model_type(self) -> str:
        """The section's own `model_type`, or ""."""
        value = self.raw.get("model_type", "")
        return value if isinstance(value, str) else ""

    def get(self, name: str) -> Any:
        """The value of `name` as written, else the class default, else None.

        Example:
            >>> Section({"n_embd": 768}).get("hidden_size")
            768
        """
        spellings = (name, *ALIASES.get(name, ()))
        found = [(key, self.raw[key]) for key in spellings if key in self.raw]
        given = [pair for pair in found if pair[1] is not None]
        if len(given) > 1 and any(value != given[0][1] for _, value in given):
            raise self.contradicting(given[0][0], f"{given[0][0]} and {given[1][0]} differ")
        if found or (self.path == ROOT and name in ESSENTIAL):
            return given[0][1] if given else None
        return next((self._defaults[key] for key in spellings if key in self._defaults), None)

    def has(self, name: str) -> bool:
        """Whether the file itself gives `name` a value other than null."""
        return any(self.raw.get(key) is not None for key in (name, *ALIASES.get(name, ())))

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER
    ) -> int:
        """The integer `name`; null and absent give `default`, and without one an error.

        Example:
            >>> Section({"hidden_size": 4096}).integer("hidden_size")
            4096
        """
        value = self.optional_integer(name, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is None:
            raise self.missing(name)
        return default

    def optional_integer(self, name: str, *, minimum: int = 0, maximum: int = MAX_INTEGER) -> int | None:
        """The integer `name`, or None when it is null or absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, value, "expected an integer")
        if not minimum <= value <= maximum:
            raise self.invalid(name, value, f"expected {minimum} to {maximum}")
        return value

    def layers(self, name: str = "num_hidden_layers") -> int:
        """A number of layers."""
        return self.integer(name, maximum=MAX_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """The finite number `name`; null and absent give `default`, and without one an error.

        What is beyond MAX_NUMBER is as good as infinite: multiplied with a width it would be.
        """
        value = self._given(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
            raise self.invalid(name, value, "expected a finite number")
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """The flag `name`; null and absent give `default`, and without one an error."""
        value = self._given(name, default)
        if not isinstance(value, bool) and value not in (0, 1):
            raise self.invalid(name, value, "expected true or false")
        return bool(value)

    def string(self, name: str, default: str | None = None) -> str:
        """The text `name`; null and absent give `default`, and without one an error."""
        value = self._given(name, default)
        if not isinstance(value, str):
            raise self.invalid(name, value, "expected a text")
        return value

    def _given(self, name: str, default: object) -> Any:
        value = self.get(name)
        if value is None and default is None:
            raise self.missing(name)
        return default if value is None else value

    def sequence(self, name: str, most: int = MAX_VALUES) -> Sequence[Any] | None:
        """The list `name` of at most `most` values, or None when it is null or absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.invalid(name, value, "expected a list")
        if len(value) > most:
            raise self.invalid(name, f"{len(value)} values", f"expected at most {most}")
        return value

    def integers(self, name: str, *, minimum: int = 0, maximum: int = MAX_INTEGER) -> tuple[int, ...] | None:
        """The list of integers `name`, or None when it is null or absent."""

        def is_one(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum

        return self._all(name, is_one, f"expected integers, {minimum} to {maximum}")

    def strings(self, name: str) -> tuple[str, ...] | None:
        """The list of at most MAX_NAMES texts `name`, or None when it is null or absent."""
        return self._all(name, lambda value: isinstance(value, str), "expected texts", MAX_NAMES)

    def _all(
        self, name: str, is_one: Callable[[object], bool], reason: str, most: int = MAX_VALUES
    ) -> tuple[Any, ...] | None:
        values = self.sequence(name, most)
        for value in values or ():
            if not is_one(value):
                raise self.invalid(name, value, reason)
        return None if values is None else tuple(values)

    def words(self, name: str, known: Collection[str], count: int | None = None) -> tuple[str, ...] | None:
        """The list `name` of words that are all `known`, one for each of `count` layers; None where it is absent.

        Words after `count` are ignored, as in the engine. An unknown word is an error, never a guess.

        Example:
            >>> Section({"layer_types": ["full", "full"]}).words("layer_types", ("full", "sliding"), 1)
            ('full',)
        """
        found = self.strings(name)
        if found is None:
            return None
        if count is not None and len(found) < count:
            raise self.contradicting(name, f"{len(found)} entries for {count} layers")
        found = found[:count]
        for word in found:
            if word not in known:
                raise self.invalid(name, word, f"expected one of {', '.join(sorted(known))}")
        return found

    def section(self, name: str, model_type: str | None = None) -> Section:
        """The nested object `name`; `model_type` chooses class defaults where the object names none."""
        nested = self.optional_section(name, model_type)
        if nested is None:
            raise self.missing(name)
        return nested

    def optional_section(self, name: str, model_type: str | None = None) -> Section | None:
        """The nested object `name`, or None when it is null or absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.invalid(name, value, "expected an object")
        own = value.get("model_type")
        if not isinstance(own, str) or not class_defaults(own):
            own = model_type or f"{self.model_type}/{name}"
        return Section(value, f"{self.path}.{name}", own)

    def missing(self, name: str) -> ModelError:
        """The error that `name` is missing."""
        return ModelError("missing-config-key", field=f"{self.path}.{name}", key=name)

    def invalid(self, name: str, value: object, reason: str) -> ModelError:
        """The error that `name` cannot be `value`."""
        return ModelError(
            "invalid-config-value", field=f"{self.path}.{name}", value=str(value)[:80], reason=reason
        )

    def contradicting(self, name: str, reason: str) -> ModelError:
        """The error that `name` does not agree with the rest of the file."""
        return ModelError("contradicting-config", field=f"{self.path}.{name}", reason=reason)


KIND: Final = "model_quant_type"
CACHE_KIND: Final = "kv_cache_type"
FACTS: Final = (KIND, CACHE_KIND, "group_size", "version")
WEIGHTS: Final = (".weight", ".weight_packed")
OTHER_EXPERT: Final = re.compile(r"\.experts\.[1-9][0-9]*\.")


def is_modelslim(side_file: Mapping[str, Any] | None) -> bool:
    """Whether a side file is ModelSlim's quant_model_description.json.

    Example:
        >>> is_modelslim({"model_quant_type": "W8A8"}), is_modelslim({"quantization": {}})
        (True, False)
    """
    return side_file is not None and isinstance(side_file.get(KIND), str)


def condensed(side_file: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A side file without entries that change nothing: in ModelSlim's, tensors that are no weights, and all experts
    but the first; a model has hundreds.

    Example:
        >>> condensed({"model_quant_type": "W8A8", "a.experts.0.w1.weight": "W8A8", "a.experts.7.w1.weight": "W8A8",
        ...            "a.experts.0.w1.weight_scale": "W8A8"})
        {'model_quant_type': 'W8A8', 'a.experts.0.w1.weight': 'W8A8'}
    """
    if side_file is None or not is_modelslim(side_file):
        return side_file
    return {
        name: value
        for name, value in side_file.items()
        if name in FACTS or (name.endswith(WEIGHTS) and OTHER_EXPERT.search(name) is None)
    }


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Keeper):
    """config.json, with the quantization side file where the checkpoint has one.

    Two configs are equal when their JSON is; the hash is taken from `text`, so that readers can be cached.
    """

    text: str
    """Canonical JSON of config.json."""
    hf_quant_config_text: str = ""
    raw: Mapping[str, Any] = field(compare=False, repr=False, default_factory=dict)
    hf_quant_config: Mapping[str, Any] | None = field(compare=False, repr=False, default=None)
    headers: Headers | None = None
    """Headers of the checkpoint's files, for a class that no family reads."""

    def __getstate__(self) -> object:
        """A copy has the files, and reads them anew."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_mapping(
        cls,
        raw: Mapping[str, Any],
        hf_quant_config: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
    ) -> ModelConfig:
        """A config from parsed JSON. Raises ModelError `input-too-large` for more than MAX_CONFIG_BYTES of either.

        Example:
            >>> ModelConfig.from_mapping({"model_type": "llama"}).model_type
            'llama'
        """
        if not isinstance(raw, Mapping):
            raise ModelError(
                "invalid-config-value", field="config", value=str(raw)[:80], reason="expected an object"
            )
        text = json.dumps(raw, sort_keys=True, separators=(",", ":"))
        hf_quant_config = condensed(hf_quant_config)
        side_text = json.dumps(hf_quant_config, sort_keys=True) if hf_quant_config else ""
        for name, written in (("config", text), ("hf_quant_config", side_text)):
            if len(written) > MAX_CONFIG_BYTES:
                raise ModelError("input-too-large", field=name, limit=f"{MAX_CONFIG_BYTES >> 20} MiB")
        return cls(
            text=text,
            hf_quant_config_text=side_text,
            raw=raw,
            hf_quant_config=hf_quant_config,
            headers=headers,
        )

    @cached_property
    def root(self) -> Section:
        """The whole file."""
        return Section(self.raw)

    @cached_property
    def language(self) -> Section:
        """The language model's part: a nested section where the file has one, else the whole file.

        Example:
            >>> ModelConfig.from_mapping({"text_config": {"hidden_size": 64}}).language.integer("hidden_size")
            64
        """
        section = self.root
        while nested := next((name for name in LANGUAGE_SECTIONS if section.has(name)), ""):
            section = section.section(nested)
        return section

    @property
    def model_type(self) -> str:
        """`model_type`, or ""."""
        return self.root.model_type

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """`architectures`, or ()."""
        return self.root.strings("architectures") or ()

    @property
    def dtype(self) -> str:
        """The dtype that the file names, as torch spells it; float32 when it names none.

        Source: vllm/transformers_utils/model_arch_config_convertor.py:get_torch_dtype (0.32).

        Example:
            >>> ModelConfig.from_mapping({"torch_dtype": "bfloat16"}).dtype
            'bfloat16'
        """
        for section in (self.root, self.language, self.root.optional_section("vision_config")):
            name = section.string("torch_dtype", "").removeprefix("torch.") if section else ""
            if section and name and name not in DTYPES:
                raise section.invalid("torch_dtype", name, f"expected one of {', '.join(sorted(DTYPES))}")
            if name:
                return DTYPES[name]
        return "float32"


class SharedConfigs:
    """One object for all equal configs of a batch, because what is read of a config is cached with the object.

    The latest configs, up to MAX_SHARED_CHARACTERS of text.

    Example:
        >>> shared = SharedConfigs()
        >>> shared.read({"model_type": "llama"}) is shared.read({"model_type": "llama"})
        True
    """

    def __init__(self, most_characters: int = MAX_SHARED_CHARACTERS) -> None:
        self._configs: LRUCache[ModelConfig, ModelConfig] = LRUCache(most_characters, _characters)

    def read(self, raw: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None = None) -> ModelConfig:
        """`ModelConfig.from_mapping`, or the equal one that was read before. Raises ModelError `input-too-large`."""
        config = ModelConfig.from_mapping(raw, hf_quant_config)
        return self._configs.setdefault(config, config)


def _characters(config: ModelConfig) -> int:
    return len(config.text) + len(config.hf_quant_config_text)
