"""Engine arguments out of a log: the dictionary, Namespace, config and command lines, all untrusted.

Nothing is evaluated. A line is cut at the commas of its outermost level; a value counts only when it has the
type and the range of its flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kvcore.engine.rooms import memory_variable_names
from kvcore.errors import Notice, shorten
from kvcore.evidence.log.cleaned import LogText
from kvcore.evidence.log.commands import Command, CommandFlag, find_commands
from kvcore.evidence.log.dictionaries import MAX_VALUE_CHARACTERS, cut_fields, pairs, unquoted
from kvcore.evidence.log.graph_arguments import GraphValue, graph_flags, logged_graphs
from kvcore.evidence.log.startup import FlagLine, LogFlags, LoggedGraphs
from kvcore.flags import Flag, Kind, LogRule, fields_of, read_whole
from kvcore.model.rope import LARGEST_FACTOR, YARN, Yarn
from kvcore.scenario import Runner, SpeculativeConfig

MAX_ARGUMENT_CHARACTERS: Final = 1 << 16
MAX_ARGUMENT_LINES: Final = 32
"""Argument lines of one start that are read; each API server prints one."""
CHARACTERS_PER_STEP: Final = 8
FIELD_STEPS: Final = 2
MAX_UNUSED_FLAGS: Final = 24
MAX_COMMAND_NOTICES: Final = 4
LARGEST_COUNT: Final = 100_000
"""Images, videos or audios of one prompt."""
LARGEST_LENGTH: Final = 1 << 24
"""Of a model before its rope is stretched."""

_DECIMAL: Final = re.compile(r"\d{0,12}\.?\d{0,12}(?:[eE]-?\d{1,2})?")
_COUNT: Final = re.compile(r"\d{1,18}")
_WORD: Final = re.compile(r"[a-z][a-z0-9_\-]{0,39}")

POOLING_TASKS: Final = frozenset({"embed", "embedding", "classify", "score", "reward", "encode"})
"""Source: vllm/config.py:_RUNNER_TASKS (0.8.5, 0.9.2)."""

Value = int | float | str | bool | SpeculativeConfig | Mapping[str, int] | tuple[int, ...]
Reader = Callable[[str], Value | None]


def _decimal(low: float, high: float) -> Reader:
    def read(text: str) -> float | None:
        text = unquoted(text)
        if not any(c.isdigit() for c in text[:1] + text[1:2]) or _DECIMAL.fullmatch(text) is None:
            return None
        value = float(text)
        return value if low <= value <= high else None

    return read


def _switch(text: str) -> bool | None:
    return {"True": True, "true": True, "False": False, "false": False}.get(unquoted(text))


def _word(text: str) -> str | None:
    """A value of an enumeration: `torch.bfloat16` and `<CacheDType.FP8:'fp8'>` are what they name."""
    text = unquoted(text)
    if text.startswith("<") and ":" in text:
        text = unquoted(text.rstrip(">").partition(":")[2])
    text = text.removeprefix("torch.")
    return text if _WORD.fullmatch(text) and text not in ("none", "null") else None


def _one_of(*words: str) -> Reader:
    """One of few words; any other, the flag's default among them, says nothing."""
    return lambda text: word if (word := _word(text)) in words else None


def _runner(text: str) -> str | None:
    """`--runner`, `--task` of older releases, and the pooler's settings that only the pooling runner has."""
    word = _word(text)
    if word in POOLING_TASKS or text.startswith("PoolerConfig("):
        return Runner.POOLING.value
    return word if word in (Runner.GENERATE.value, Runner.POOLING.value) else None


def _limits(text: str) -> Mapping[str, int] | None:
    limits: dict[str, int] = {}
    for name, value in pairs(unquoted(text)):
        if name not in fields_of("limit_mm_per_prompt"):
            continue
        inner = unquoted(dict(pairs(value)).get("count", value) if value.startswith("{") else value)
        if _COUNT.fullmatch(inner) is not None and int(inner) <= LARGEST_COUNT:
            limits[name] = int(inner)
    return limits or None


def _speculative(text: str) -> SpeculativeConfig | None:
    text = unquoted(text)
    values = dict(pairs(text))
    method = _word(values.get("method", ""))
    model = _text(values.get("model", ""))
    if method is None:
        method = "draft_model" if model else None
    if not isinstance(method, str):
        return None
    return SpeculativeConfig(
        method=method,
        num_speculative_tokens=_field_of_draft("num_speculative_tokens", values),
        model=model,
        draft_tensor_parallel_size=_field_of_draft("draft_tensor_parallel_size", values),
    )


def _field_of_draft(key: str, values: Mapping[str, str]) -> int | None:
    flag = fields_of("speculative_config")[key]
    text = next((values[name] for name in (key, *flag.logged) if name in values), "")
    return read_whole(unquoted(text), flag)


def _stretched_rope(text: str) -> str | None:
    """`--hf-overrides` that stretches the rope by YaRN; any other override says nothing that is planned."""
    for name, value in pairs(unquoted(text)):
        if name in ("rope_parameters", "rope_scaling"):
            rope = dict(pairs(value))
            factor = _decimal(1.0, LARGEST_FACTOR)(rope.get("factor", ""))
            original = unquoted(rope.get("original_max_position_embeddings", ""))
            is_yarn = _word(rope.get("rope_type", rope.get("type", ""))) == YARN
            is_length = _COUNT.fullmatch(original) is not None and 1 <= int(original) <= LARGEST_LENGTH
            if is_yarn and isinstance(factor, float) and is_length:
                return Yarn(factor=factor, original_max_position_embeddings=int(original)).text
    return None


def _text(text: str) -> str | None:
    text = unquoted(text)
    return shorten(text, 400) if text and text not in ("None", "null") and text.isprintable() else None


def _by_kind(flag: Flag) -> Reader:
    if flag.kind is Kind.INTEGER:
        return lambda text: read_whole(unquoted(text), flag)
    if flag.kind is Kind.NUMBER:
        return _decimal(*flag.bounds)
    return _switch if flag.kind is Kind.BOOLEAN else _one_of(*flag.common)


_BY_RULE: Final[Mapping[LogRule, Reader]] = {
    LogRule.WORD: _word,
    LogRule.RUNNER: _runner,
    LogRule.LIMITS: _limits,
    LogRule.ROPE: _stretched_rope,
    LogRule.SPECULATIVE: _speculative,
}
_READERS: Final[Mapping[str, Reader]] = {
    name: _by_kind(flag) if flag.log is LogRule.BY_KIND else _BY_RULE[flag.log]
    for name, flag in fields_of().items()
    if flag.log is LogRule.BY_KIND or flag.log in _BY_RULE
}
_NAMES: Final[Mapping[str, str]] = {
    other: name for name, flag in fields_of().items() for other in flag.other_names
}
_MODELS: Final = ("model", "model_tag")
_NO_VALUES: Final = ("", "none", "null", "auto")
"""What says of a flag that it is not set."""
_LINES: Final = (
    ("arguments", "non-defaultargs:{", "}"),
    ("namespace", "args:Namespace(", ")"),
)
_CONFIG: Final = "withconfig:model="
_COMPILATION: Final = (("DirectlyloadAOTcompilationfrompath", True), ("savedAOTcompiledfunctionto", False))
"""Source: vllm/compilation/decorators.py (0.20.2, 0.32.0)."""
_VARIABLES: Final = memory_variable_names()
_ENVIRONMENT: Final = re.compile(
    rf"({'|'.join(map(re.escape, _VARIABLES))})['\"]?[=:]['\"]?(\d{{1,6}}(?:\.\d{{1,6}})?)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedArguments:
    """Flags, the model, and the lines they were read from."""

    flags: LogFlags
    lines: tuple[FlagLine, ...]
    model: str | None
    env: Mapping[str, str]
    resolved_quantization: str | None
    graphs: LoggedGraphs | None = None
    notices: tuple[Notice, ...] = ()
    """Flags of a command that were not taken."""
    image_version: str | None = None
    """The release of the container image that a command names."""


def read_flags(log: LogText, start: int, end: int) -> LoggedArguments:
    """The engine arguments between two offsets of a log.

    What the person asked for (arguments, command) stands above what the engine resolved (config line).

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> log = clean_log("non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}")
        >>> found = read_flags(log, 0, len(log.text))
        >>> found.model, found.flags.max_model_len
        ('Qwen/Qwen3-8B', 8192)
    """
    asked: dict[str, Value] = {}
    resolved: dict[str, Value] = {}
    models: list[str] = []
    resolved_models: list[str] = []
    lines: list[FlagLine] = []
    resolved_quantization: str | None = None
    graphs: dict[str, GraphValue] = {}
    asked_graphs: dict[str, GraphValue] = {}

    def keep(kind: str, offset: int) -> None:
        lines.append(FlagLine(kind=kind, line_number=log.line_number(offset), line=log.line(offset)))

    notices: list[Notice] = []
    env: dict[str, str] = {}
    version: str | None = None
    for command in find_commands(log, start, end):
        for offset in command.offsets:
            keep(command.kind, offset)
        _take(((flag.name, flag.value) for flag in command.flags), asked, models, asked_graphs)
        notices += _not_taken(log, command)
        env |= command.env
        version = command.version or version
    for kind, anchor, closing in _LINES:
        for offset in _occurrences(log, anchor, start, end):
            keep(kind, offset)
            _take(_fields(log, offset + len(anchor), end, closing), asked, models, asked_graphs)
    for offset in _occurrences(log, _CONFIG, start, end):
        keep("config", offset)
        begin = offset + len(_CONFIG) - len("model=")
        fields = list(_fields(log, begin, end, ""))
        method = next((_word(value) for name, value in fields if name == "quantization"), None)
        resolved_quantization = method or resolved_quantization
        _take((pair for pair in fields if pair[0] != "quantization"), resolved, resolved_models, graphs)
    for anchor in _VARIABLES:
        for offset in _occurrences(log, anchor, start, end):
            match = _ENVIRONMENT.match(log.text, offset, min(end, log.line_end(offset)))
            if match is not None:
                env[match[1]] = match[2]
                keep("environment", offset)
    for anchor, compiled in _COMPILATION:
        for offset in islice(_occurrences(log, anchor, start, end), 1):
            resolved.setdefault("kernels_compiled", compiled)
            if lines:
                keep("compilation", offset)
    flags = {**resolved, **asked, **asked_graphs}
    models += resolved_models
    return LoggedArguments(
        flags=LogFlags(**flags),
        lines=tuple(lines),
        model=models[0] if models else None,
        env=env,
        resolved_quantization=resolved_quantization,
        graphs=logged_graphs(graphs),
        notices=tuple(notices[:MAX_COMMAND_NOTICES]),
        image_version=version,
    )


def _not_taken(log: LogText, command: Command) -> Iterator[Notice]:
    """What of a command changes nothing: values that their flag cannot have, and flags that are not planned with."""
    line = str(log.line_number(command.offsets[0]))
    unusable: list[str] = []
    unused: list[str] = []
    for flag in command.flags:
        if flag.name in _MODELS or _is_read(flag) or flag.value.lower() in _NO_VALUES:
            continue
        (unusable if _NAMES.get(flag.name, flag.name) in _READERS else unused).append(flag.shown)
    for code, flags in (("log-flags-unusable", unusable), ("log-flags-unused", unused)):
        if flags:
            shown = ", ".join(list(dict.fromkeys(flags))[:MAX_UNUSED_FLAGS])
            yield Notice(code=code, params={"line": line, "flags": shown})


def _is_read(flag: CommandFlag) -> bool:
    if graph_flags(flag.name, flag.value):
        return True
    reader = _READERS.get(_NAMES.get(flag.name, flag.name))
    return reader is not None and len(flag.value) <= MAX_VALUE_CHARACTERS and reader(flag.value) is not None


def _fields(log: LogText, begin: int, end: int, closing: str) -> Iterator[tuple[str, str]]:
    """The fields of an argument line from `begin` on, for as long as the log's steps last."""
    inside = log.text[begin : min(end, begin + MAX_ARGUMENT_CHARACTERS)]
    if log.steps.take(len(inside) // CHARACTERS_PER_STEP):
        for field in cut_fields(inside, closing):
            if not log.steps.take(FIELD_STEPS):
                return
            yield field


def _occurrences(log: LogText, anchor: str, start: int, end: int) -> Iterator[int]:
    at = start
    for _ in range(MAX_ARGUMENT_LINES):
        at = log.find(anchor, at, end)
        if at < 0:
            return
        yield at
        at += len(anchor)


def _take(
    fields: Iterator[tuple[str, str]],
    flags: dict[str, Value],
    models: list[str],
    graphs: dict[str, GraphValue],
) -> None:
    """Keeps the fields whose value is of the flag's kind."""
    for raw, value in fields:
        graphs |= graph_flags(raw, value)
        name = _NAMES.get(raw, raw)
        if name in _MODELS:
            model = _text(value)
            if model is not None:
                models.append(model)
        reader = _READERS.get(name)
        if reader is None or len(value) > MAX_VALUE_CHARACTERS:
            continue
        read = reader(value)
        if read is not None:
            flags[name] = read
