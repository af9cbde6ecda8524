"""Values of flags as a log writes them: fields of a dictionary, a call or a dataclass, split and never evaluated.

A value counts only with the type and in the range of its flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kvcore.base.errors import ScenarioError, shorten
from kvcore.base.untrusted import unquoted
from kvcore.flags import FLAGS, KEPT_NAME, WORD, Flag, Kind, LogRule, fields_of, read_whole
from kvcore.model.overrides import read_overrides
from kvcore.scenario import KEPT_AS_JSON, CudagraphMode, Runner, SpeculativeConfig

MAX_VALUE_CHARACTERS: Final = 4096
MAX_CONFIG_CHARACTERS: Final = 1 << 15
"""Longest compilation config: with sizes and splitting operators it is the longest field of the line."""
MAX_SIZES: Final = 4096
LARGEST_SIZE: Final = 1 << 31

MAX_LITERAL_DEPTH: Final = 4
"""Deepest lists and dictionaries in a value that is passed on as it is."""

LISTS: Final = frozenset({"cudagraph_capture_sizes", "cuda_graph_sizes"})
"""Flags with several words in a command."""
POOLING_TASKS: Final = frozenset({"embed", "embedding", "classify", "score", "reward", "encode"})
"""Source: vllm/config.py:_RUNNER_TASKS (0.8.5, 0.9.2)."""

_KEPT: Final = re.compile(KEPT_NAME)
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_DECIMAL: Final = re.compile(r"\d{0,12}\.?\d{0,12}(?:[eE]-?\d{1,2})?")
_COUNT: Final = re.compile(r"\d{1,18}")
_WORD: Final = re.compile(r"[a-z][a-z0-9_\-]{0,39}")
_SWITCHES: Final = {"True": True, "true": True, "False": False, "false": False}
_CONFIGS: Final = ("compilation_config", "O", "cc")
"""`--compilation-config`, `-O` up to 0.11 and `-cc` from 0.12 on; with a dot behind, one field of it.

Source: vllm/engine/arg_utils.py:EngineArgs.add_cli_args (0.9.2, 0.11.0, 0.12.0).
"""
_PASSES: Final = "pass_config"
_FUSIONS: Final = ("fuse_allreduce_rms", *FLAGS["fuse_allreduce_rms"].logged)
_IN_CONFIG: Final = ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "cudagraph_mode", *_FUSIONS)
_NAMED_MODE: Final = re.compile(r"(?:<?CUDAGraphMode\.)?([A-Z_]{1,40})(?::.{0,400}>)?", re.DOTALL)
_NUMBERED_MODES: Final = {
    "0": CudagraphMode.NONE, "1": CudagraphMode.PIECEWISE, "2": CudagraphMode.FULL,
    "2,0": CudagraphMode.FULL_DECODE_ONLY, "2,1": CudagraphMode.FULL_AND_PIECEWISE,
}  # fmt: skip
"""Source: vllm/config/compilation.py:CUDAGraphMode (0.10.1.1, 0.32.0)."""

GraphValue = int | str | tuple[int, ...]
Value = int | float | str | bool | SpeculativeConfig | Mapping[str, Any] | tuple[int, ...]
Reader = Callable[[str], Value | None]


def cut_fields(text: str, closing: str) -> Iterator[tuple[str, str]]:
    """Names and values of `name=value` or `'name':value`, cut at the commas of the outermost level.

    Ends at `closing` on that level, or with the text.
    """
    depth: list[str] = []
    quote = ""
    escaped = False
    begin = 0
    for at, character in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth.append(_OPENING[character])
        elif depth:
            if character == depth[-1]:
                depth.pop()
        elif character == "," or (closing and character == closing):
            yield _pair(text[begin:at])
            begin = at + 1
            if character != ",":
                return
    if not closing and not quote and not depth:
        yield _pair(text[begin:])


def _pair(text: str) -> tuple[str, str]:
    """A field's name without quotes, and its value."""
    if text[:1] in ("'", '"'):
        name, _, value = text[1:].partition(text[0])
        return name, value.removeprefix(":")
    name, _, value = text.partition("=")
    return name, value


def pairs(text: str, most: int = MAX_VALUE_CHARACTERS) -> Iterator[tuple[str, str]]:
    """The fields of a dictionary, or of a dataclass as it prints itself; none of a text above `most` characters."""
    opening = min((at for at in (text.find("{"), text.find("(")) if at >= 0), default=-1)
    if opening >= 0 and len(text) <= most:
        yield from cut_fields(text[opening + 1 :], _OPENING[text[opening]])


def graph_flags(name: str, value: str) -> dict[str, GraphValue]:
    """The settings of graphs in one field of a log's arguments, by the contract's names; empty for other fields.

    `--cuda-graph-sizes` with one number gives the largest size, with several numbers all sizes.

    Example:
        >>> graph_flags("compilation_config", '{"level":3,"cudagraph_mode":"FULL","cudagraph_capture_sizes":[4,2]}')
        {'cudagraph_mode': 'FULL', 'cudagraph_capture_sizes': (2, 4)}
        >>> graph_flags("cuda_graph_sizes", "[64]"), graph_flags("max_num_seqs", "64")
        ({'max_cudagraph_capture_size': 64}, {})
    """
    if name in _CONFIGS:
        found: dict[str, GraphValue] = {}
        own = dict(pairs(unquoted(value), MAX_CONFIG_CHARACTERS))
        for inner, text in (*own.items(), *pairs(own.get(_PASSES, ""))):
            if inner in _IN_CONFIG:
                found |= graph_flags(inner, text)
        return found
    for config in (*_CONFIGS, _PASSES):
        name = name.removeprefix(f"{config}_")
    text = unquoted(value)
    read: GraphValue | None = None
    if name == "cudagraph_mode":
        read = _mode(text)
    elif name == "max_cudagraph_capture_size":
        read = _count(text, LARGEST_SIZE, 1)
    elif name in _FUSIONS:
        name, read = _FUSIONS[0], _SWITCHES.get(text)
    elif name in LISTS and (sizes := _sizes(text)) is not None:
        is_largest = name == "cuda_graph_sizes" and len(sizes) == 1
        name = "max_cudagraph_capture_size" if is_largest else "cudagraph_capture_sizes"
        read = sizes[0] if is_largest else sizes
    return {} if read is None else {name: read}


def _mode(text: str) -> str | None:
    """A mode as a person writes it or as the engine prints it; it prints `None` before one is chosen."""
    if text == "None":
        return None
    named = _NAMED_MODE.fullmatch(text.upper() if text.replace("_", "").isalpha() else text)
    if named is None:
        numbered = _NUMBERED_MODES.get(text.strip("[]()"))
        return None if numbered is None else numbered.value
    return named[1] if named[1] in CudagraphMode.__members__ else None


def _sizes(text: str) -> tuple[int, ...] | None:
    """A list of sizes; None where an item is no size, as in a list that somebody shortened."""
    inner = text[1:-1] if text[:1] in "[(" and text[-1:] in "])" else text
    words = [word for word, _ in cut_fields(inner, "")]
    sizes = [size for word in words[:MAX_SIZES] if (size := _count(word, LARGEST_SIZE, 1)) is not None]
    return tuple(sorted(set(sizes))) if 0 < len(sizes) == len(words) else None


def _count(text: str, largest: int, least: int = 0) -> int | None:
    is_count = _COUNT.fullmatch(text) is not None
    return int(text) if is_count and least <= int(text) <= largest else None


def _decimal(text: str, low: float, high: float) -> float | None:
    text = unquoted(text)
    if not any(c.isdigit() for c in text[:2]) or _DECIMAL.fullmatch(text) is None:
        return None
    return value if low <= (value := float(text)) <= high else None


def read_word(text: str) -> str | None:
    """A word; of `torch.bfloat16` and `<CacheDType.FP8:'fp8'>` the value that they name."""
    text = unquoted(text)
    if text.startswith("<") and ":" in text:
        text = unquoted(text.rstrip(">").partition(":")[2])
    text = text.removeprefix("torch.")
    return text if _WORD.fullmatch(text) and text not in ("none", "null") else None


def _runner(text: str) -> str | None:
    """The runner of `--runner`, of `--task` in older releases, or of a pooler's settings."""
    word = read_word(text)
    if word in POOLING_TASKS or text.startswith("PoolerConfig("):
        return Runner.POOLING.value
    return word if word in (Runner.GENERATE.value, Runner.POOLING.value) else None


def _limits(text: str) -> Mapping[str, int] | None:
    limits: dict[str, int] = {}
    for name, value in pairs(unquoted(text)):
        for key, said in dict(pairs(value) if value[-1:] in "})" else [("count", value)]).items():
            own = name if key == "count" else f"{name}.{key}"
            flag = FLAGS.get(f"limit_mm_per_prompt.{own}")
            if flag is None:
                continue
            least, most = flag.bounds
            if (count := _count(unquoted(said), int(most), int(least))) is not None:
                limits[own] = count
    return limits or None


def _speculative(text: str) -> SpeculativeConfig | None:
    text = unquoted(text)
    values = dict(pairs(text))
    model = read_text(values.get("model", ""))
    method = read_word(values.get("method", "")) or ("draft_model" if model else None)
    if method is None:
        return None
    numbers: dict[str, Any] = {}
    for key in ("num_speculative_tokens", "draft_tensor_parallel_size"):
        flag = fields_of("speculative_config")[key]
        said = next((values[name] for name in (key, *flag.logged) if name in values), "")
        numbers[key] = read_whole(unquoted(said), flag)
    eager = _SWITCHES.get(unquoted(values.get("enforce_eager", "")))
    return SpeculativeConfig(method=method, model=model, enforce_eager=eager, **numbers)


def _overrides(text: str) -> str | None:
    """`--hf-overrides`; None for what is not planned, such as a rope of another type."""
    said = _literal(unquoted(text))
    try:
        return read_overrides(said).text if isinstance(said, dict) and said else None
    except ScenarioError:
        return None


def read_text(text: str) -> str | None:
    """A printable text, shortened."""
    text = unquoted(text)
    return shorten(text, 400) if text and text not in ("None", "null") and text.isprintable() else None


def _by_kind(flag: Flag) -> Reader:
    if flag.kind is Kind.INTEGER:
        return lambda text: read_whole(unquoted(text), flag)
    if flag.kind is Kind.NUMBER:
        return lambda text: _decimal(text, *flag.bounds)
    if flag.kind is Kind.BOOLEAN:
        return lambda text: _SWITCHES.get(unquoted(text))
    if flag.kind is Kind.OBJECT:
        return lambda text: _object(flag, unquoted(text)) or None
    if flag.kind is Kind.ANY:
        return _literal
    if flag.kind is Kind.TEXT:
        return lambda text: said if (said := read_text(text)) and _may_be(flag, said) else None
    # Other words, the flag's default among them, do not count.
    return lambda text: word if (word := read_word(text)) in flag.common else None


def _object(flag: Flag, text: str) -> dict[str, Any]:
    """The fields of an object, each as its row reads it; without a row as it is where the object keeps such."""
    found: dict[str, Any] = {}
    for key, said in pairs(text):
        inner = fields_of(flag.name).get(key)
        if inner is not None:
            found[key] = _by_kind(inner)(said)
        elif flag.is_open and _KEPT.fullmatch(key):
            found[key] = _literal(said)
    return {key: value for key, value in found.items() if value is not None}


def _may_be(flag: Flag, text: str) -> bool:
    return len(text) <= flag.characters and not (flag.is_word and re.fullmatch(WORD, text) is None)


_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,12})?")


def _literal(text: str, depth: int = 0) -> Any:
    """A number, a switch, a text, or a list or dictionary of these, as JSON and Python write it; None for others."""
    if depth > MAX_LITERAL_DEPTH:
        return None
    if text[:1] == "{" and text[-1:] == "}":
        return {name: _literal(value, depth + 1) for name, value in pairs(text) if name}
    if text[:1] == "[" and text[-1:] == "]":
        words = (word or value for word, value in cut_fields(text[1:-1], ""))
        return [_literal(word, depth + 1) for word in words if word]
    if text in _SWITCHES:
        return _SWITCHES[text]
    number = _NUMBER.fullmatch(text)
    if number is not None:
        return float(text) if number[1] else int(text)
    return read_text(text)


_BY_RULE: Final[Mapping[LogRule, Reader]] = {
    LogRule.WORD: read_word,
    LogRule.RUNNER: _runner,
    LogRule.LIMITS: _limits,
    LogRule.ROPE: _overrides,
    LogRule.SPECULATIVE: _speculative,
}
_READERS: Final[Mapping[str, Reader]] = {
    name: _by_kind(flag) if flag.log is LogRule.BY_KIND else _BY_RULE[flag.log]
    for name, flag in fields_of().items()
    if flag.log is LogRule.BY_KIND or flag.log in _BY_RULE
}
_NAMES: Final = {other: name for name, flag in fields_of().items() for other in flag.other_names}


def field_name(written: str) -> str:
    """The contract's name of a flag by any of its names."""
    return _NAMES.get(written, written)


def is_planned(name: str) -> bool:
    """Whether a flag of the contract is read from a log."""
    return name in _READERS


_INNER: Final = {
    flag.name.replace(".", "_"): flag
    for flag in FLAGS.values()
    if flag.parent.partition(".")[0] in ("limit_mm_per_prompt", "mm_processor_kwargs", *KEPT_AS_JSON)
}
"""Fields of objects with flags of their own: `--limit-mm-per-prompt.image 2`."""


def inner_value(name: str, text: str) -> dict[str, dict[str, Any]]:
    """The object of which a command's flag gives one field, with that field; empty for other flags.

    Example:
        >>> inner_value("limit_mm_per_prompt_image_width", "512")
        {'limit_mm_per_prompt': {'image.width': 512}}
    """
    flag = _INNER.get(name)
    if flag is None:
        return {}
    head, _, key = flag.name.partition(".")
    read = _count(text, int(flag.bounds[1])) if flag.kind is Kind.COUNT else _by_kind(flag)(text)
    return {} if read is None else {head: {key: read}}


_BEHIND_DOTS: Final = {
    tuple(word.lstrip("-").replace("-", "_").split(".")): flag.name
    for flag in FLAGS.values()
    for word in flag.cli
    if word.count(".") == 1
}
"""Object and key of flags that are written as a key of another flag: `--eplb-config.num_redundant_experts`."""
_SPECULATION: Final = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
"""Source: vllm/engine/arg_utils.py:EngineArgs.create_speculative_config (0.23.0, 0.33.0)."""


def config_values(name: str, text: str) -> dict[str, Value]:
    """The fields of a request that stand in the JSON of a flag without a field of its own.

    Example:
        >>> config_values("eplb_config", '{"window_size":1000,"num_redundant_experts":32}')
        {'num_redundant_experts': 32}
    """
    if not any(name == parent for parent, _ in _BEHIND_DOTS) or len(text) > MAX_VALUE_CHARACTERS:
        return {}
    fields = ((_BEHIND_DOTS.get((name, key), ""), said) for key, said in pairs(unquoted(text)))
    return {field: value for field, said in fields if (value := read_value(field, said)) is not None}


def speculation_value(name: str, text: str) -> dict[str, Any]:
    """The field of `--speculative-config` that a flag of its own gives.

    Example:
        >>> speculation_value("spec_tokens", "3"), speculation_value("spec", "3")
        ({'num_speculative_tokens': 3}, {})
    """
    key = _SPECULATION.get(name, "")
    flag = fields_of("speculative_config").get(key)
    read = None if flag is None else _by_kind(flag)(text)
    return {} if read is None else {key: read}


def unknown_keys(name: str, text: str) -> tuple[str, ...]:
    """The keys of an object's value that the registry does not have: they are ignored.

    Example:
        >>> unknown_keys("kv_transfer_config", '{"kv_rank":1,"no_such":1}'), unknown_keys("max_num_seqs", "{a:1}")
        (('no_such',), ())
    """
    flag = FLAGS.get(name)
    if flag is None or flag.kind is not Kind.OBJECT or flag.log is not LogRule.BY_KIND or flag.is_open:
        return ()
    return tuple(key for key, _ in pairs(unquoted(text)) if key and key not in fields_of(name))


def read_value(name: str, text: str) -> Value | None:
    """The value of a flag; None where the text is no value of it, or no log shows the flag."""
    reader = _READERS.get(name)
    return None if reader is None or len(text) > MAX_VALUE_CHARACTERS else reader(text)
