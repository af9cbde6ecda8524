"""Engine arguments in a log: dictionary, Namespace, config and command lines, all untrusted.

Nothing is evaluated. A line is split at the commas of its outermost level; a value counts only with the type and in
the range of its flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import Notice, shorten
from kvcore.engines.registry import engines, memory_variable_names
from kvcore.evidence.log.cleaned import LogText
from kvcore.evidence.log.commands import SHOWN_VALUE_CHARACTERS, Command, find_commands
from kvcore.flags import FLAGS, LogRule
from kvcore.flags.other import Effect, effect_of
from kvcore.manifests.values import (
    GraphValue,
    config_values,
    cut_fields,
    field_name,
    graph_flags,
    inner_value,
    is_planned,
    read_text,
    read_value,
    read_word,
    speculation_value,
    unknown_keys,
)
from kvcore.scenario import CudagraphMode, SpeculativeConfig

MAX_ARGUMENT_CHARACTERS: Final = 1 << 16
MAX_ARGUMENT_LINES: Final = 32
"""Most argument lines of one start that are read; each API server prints one."""
CHARACTERS_PER_STEP: Final = 8
FIELD_STEPS: Final = 2
MAX_UNUSED_FLAGS: Final = 24
MAX_COMMAND_NOTICES: Final = 8

_MODELS: Final = ("model", "model_tag")
_SERVED: Final = "served_model_name"
_NAME: Final = re.compile(r"[^\s'\",\[\]()]{1,300}")
"""The first name in a flag's value, or in a list of names."""
_NO_VALUES: Final = ("", "none", "null", "auto")
"""Values that mean unset."""
_LINES: Final = (("arguments", "non-defaultargs:{", "}"), ("namespace", "args:Namespace(", ")"))
_CONFIG: Final = "withconfig:model="
_COMPILATION: Final = (("DirectlyloadAOTcompilationfrompath", True), ("savedAOTcompiledfunctionto", False))
"""Source: vllm/compilation/decorators.py (0.20.2, 0.32.0)."""
_VARIABLES: Final = memory_variable_names()
_ENVIRONMENT: Final = re.compile(
    rf"({'|'.join(map(re.escape, _VARIABLES))})['\"]?[=:]['\"]?(\d{{1,6}}(?:\.\d{{1,6}})?)"
)


_CODES: Final = {
    Effect.NONE: "log-flags-without-effect",
    Effect.NOT_PLANNED: "log-flags-not-planned",
    Effect.UNKNOWN: "log-flags-unused",
}
_LOGGED: Final = tuple(name for name, flag in FLAGS.items() if flag.log is not LogRule.NEVER)


@dataclass(init=False)
class LogFlags:
    """Engine arguments in the contract's field names; None where the log does not show them, -1 is `auto`.

    Example:
        >>> flags = LogFlags(max_model_len=8192)
        >>> flags.max_model_len, flags.max_num_seqs
        (8192, None)
    """

    values: Mapping[str, Any]

    def __init__(self, **values: Any) -> None:
        """The flags that are not None. Raises TypeError for a flag that no log shows."""
        if unknown := values.keys() - set(_LOGGED):
            raise TypeError(f"no log shows {', '.join(sorted(unknown))}")
        self.values = {name: values[name] for name in _LOGGED if values.get(name) is not None}

    def __getattr__(self, name: str) -> Any:
        if name in _LOGGED:
            return self.values.get(name)
        raise AttributeError(name)

    @property
    def ranks_per_replica(self) -> int | None:
        """Tensor times pipeline parallel size, when either is known."""
        sizes = (self.tensor_parallel_size, self.pipeline_parallel_size)
        return None if sizes == (None, None) else (sizes[0] or 1) * (sizes[1] or 1)


class LoggedGraphs(Struct, frozen=True, kw_only=True):
    """CUDA graphs as the engine resolved them: ascending sizes in tokens, and the mode where it is printed."""

    sizes: tuple[int, ...]
    mode: CudagraphMode | None = None


class FlagLine(Struct, frozen=True, kw_only=True):
    """A line that flags were read from."""

    kind: str
    """`arguments`, `namespace`, `config`, `command`, `manifest`, `environment` or `compilation`."""
    line_number: int
    line: str


class LoggedArguments(Struct, frozen=True, kw_only=True):
    """Flags, the model, and the lines they were read from."""

    flags: LogFlags
    flag_lines: tuple[FlagLine, ...]
    model: str | None
    served_name: str | None
    """The first name that the model is served under, where one is given."""
    env: Mapping[str, str]
    resolved_quantization: str | None
    """The checkpoint's method, as the engine found it."""
    graphs: LoggedGraphs | None
    """Graphs in the engine's config line; None where it names no sizes."""
    notices: tuple[Notice, ...]
    """Flags of a command that were ignored."""
    image_version: str | None
    """The release of the container image that a command names."""
    card_name: str | None
    """The card that a file names."""


def read_flags(log: LogText, start: int, end: int) -> LoggedArguments:
    """The engine arguments between two offsets of a log.

    Flags that were given (arguments, command) take precedence over those that the engine resolved (config line).

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> log = clean_log("non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}")
        >>> found = read_flags(log, 0, len(log.text))
        >>> found.model, found.flags.max_model_len
        ('Qwen/Qwen3-8B', 8192)
    """
    asked, resolved = _Said(), _Said()
    lines: list[FlagLine] = []
    notices: list[Notice] = []
    env: dict[str, str] = {}
    method: str | None = None
    version: str | None = None
    card: str | None = None

    def keep(kind: str, offset: int) -> None:
        lines.append(FlagLine(kind=kind, line_number=log.line_number(offset), line=log.line(offset)))

    for command in find_commands(log, start, end):
        for offset in command.offsets:
            keep(command.kind, offset)
        asked.take((flag.name, flag.value) for flag in command.flags)
        notices += (*command.notices, *_not_taken(log, command))
        env |= command.env
        version = command.version or version
        card = command.card or card
    for kind, anchor, closing in _LINES:
        for offset in islice(log.occurrences(anchor, start, end), MAX_ARGUMENT_LINES):
            keep(kind, offset)
            asked.take(_fields(log, offset + len(anchor), end, closing))
    for engine in engines():
        anchor = engine.facts.log.arguments_line
        for offset in islice(log.occurrences(anchor, start, end), MAX_ARGUMENT_LINES) if anchor else ():
            keep("namespace", offset)
            logged = _fields(log, offset + len(anchor), end, ")")
            asked.take((engine.field_of(name), value) for name, value in logged)
    for offset in islice(log.occurrences(_CONFIG, start, end), MAX_ARGUMENT_LINES):
        keep("config", offset)
        fields = list(_fields(log, offset + len(_CONFIG) - len("model="), end, ""))
        method = next((read_word(value) for name, value in fields if name == "quantization"), None) or method
        resolved.take(pair for pair in fields if pair[0] != "quantization")
    for anchor in _VARIABLES:
        for offset in islice(log.occurrences(anchor, start, end), MAX_ARGUMENT_LINES):
            match = _ENVIRONMENT.match(log.text, offset, min(end, log.line_end(offset)))
            if match is not None:
                env[match[1]] = match[2]
                keep("environment", offset)
    for anchor, compiled in _COMPILATION:
        at = log.find(anchor, start, end)
        if at >= 0:
            resolved.flags.setdefault("kernels_compiled", compiled)
            if lines:
                keep("compilation", at)
    sizes, named = resolved.graphs.get("cudagraph_capture_sizes"), resolved.graphs.get("cudagraph_mode")
    mode = CudagraphMode(named) if isinstance(named, str) else None
    return LoggedArguments(
        flags=LogFlags(**{**resolved.flags, **_fusion(resolved), **asked.all_flags, **asked.graphs}),
        flag_lines=tuple(lines),
        model=next(iter(asked.models + resolved.models), None),
        served_name=next(iter(asked.served + resolved.served), None),
        env=env,
        resolved_quantization=method,
        graphs=LoggedGraphs(sizes=sizes, mode=mode) if isinstance(sizes, tuple) else None,
        notices=tuple(notices[:MAX_COMMAND_NOTICES]),
        image_version=version,
        card_name=card,
    )


@dataclass(slots=True)
class _Said:
    """Flags, models and settings of graphs in argument lines of one kind."""

    flags: dict[str, Any] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    graphs: dict[str, GraphValue] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    """`--spec-method`, `--spec-model`, `--spec-tokens`."""

    def take(self, fields: Iterable[tuple[str, str]]) -> None:
        """Adds the fields whose value is of the flag's kind."""
        for raw, value in fields:
            name = field_name(raw)
            self.graphs |= graph_flags(raw, value)
            if name in _MODELS and (model := read_text(value)) is not None:
                self.models.append(model)
            if name == _SERVED and (served := _NAME.search(value)) is not None:
                self.served.append(served[0])
            if (read := read_value(name, value)) is not None:
                self.flags[name] = read
            for head, inner in inner_value(name, value).items():
                self.flags[head] = {**self.flags.get(head, {}), **inner}
            self.flags |= config_values(raw, value)
            self.speculation |= speculation_value(raw, value)

    @property
    def all_flags(self) -> dict[str, Any]:
        """The flags, with a draft that its own flags describe where no object does."""
        said = self.speculation
        if not said or "speculative_config" in self.flags:
            return self.flags
        draft = SpeculativeConfig(**{"method": "draft_model", **said})
        return (
            {**self.flags, "speculative_config": draft} if said.keys() & {"method", "model"} else self.flags
        )


def _fusion(resolved: _Said) -> dict[str, GraphValue]:
    """Whether the engine fuses all-reduce; unknown without tensor parallelism."""
    name, size = "fuse_allreduce_rms", resolved.flags.get("tensor_parallel_size", 1)
    return {name: resolved.graphs[name]} if size > 1 and name in resolved.graphs else {}


def _not_taken(log: LogText, command: Command) -> Iterator[Notice]:
    """Notices about a command: values that are no values of their flag, flags that are not planned, flags that no
    release has, and flags without effect on memory."""
    refused: dict[str, dict[str, None]] = {
        "log-flags-unusable": {},
        "log-flags-not-planned": {},
        "log-flags-unused": {},
        "log-flags-without-effect": {},
    }
    for flag in command.flags:
        name = field_name(flag.name)
        readings = (
            graph_flags(flag.name, flag.value),
            inner_value(name, flag.value),
            config_values(flag.name, flag.value),
            speculation_value(flag.name, flag.value),
        )
        is_nested = any(readings)
        is_read = is_nested or read_value(name, flag.value) is not None
        if flag.name not in _MODELS and not is_read and flag.value.lower() not in _NO_VALUES:
            code = "log-flags-unusable" if is_planned(name) else _CODES[effect_of(flag.name)]
            refused[code][flag.shown] = None
        elif unknown := unknown_keys(name, flag.value):
            refused["log-flags-unused"] |= {
                shorten(f"{flag.word} {key}", SHOWN_VALUE_CHARACTERS): None for key in unknown
            }
    line = str(log.line_number(command.offsets[0]))
    for code, flags in refused.items():
        if flags:
            yield Notice(code=code, params={"line": line, "flags": ", ".join(list(flags)[:MAX_UNUSED_FLAGS])})


def _fields(log: LogText, begin: int, end: int, closing: str) -> Iterator[tuple[str, str]]:
    """The fields of an argument line from `begin` on, as long as the log's steps last."""
    inside = log.text[begin : min(end, begin + MAX_ARGUMENT_CHARACTERS)]
    if log.steps.take(len(inside) // CHARACTERS_PER_STEP):
        for field in cut_fields(inside, closing):
            if not log.steps.take(FIELD_STEPS):
                return
            yield field
