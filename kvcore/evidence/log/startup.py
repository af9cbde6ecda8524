"""What a start-up log says: figures with the lines they came from, flags, and why a start failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from kvcore.errors import Notice
from kvcore.flags import FLAGS, LogRule
from kvcore.scenario import CudagraphMode, Measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One figure, its unit, and the line it was read from, as pasted."""

    figure: str
    """Its name in line_formats.toml."""
    value: float
    unit: str
    line_number: int
    line: str
    rank: str = ""
    """Process that printed it; empty where the line does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFigures:
    """Memory of one rank in GiB, as its engine printed it; None where it printed nothing."""

    rank: str = ""
    weights_gib: Reading | None = None
    """"Model loading took"."""
    profiled_weights_gib: Reading | None = None
    """The same in the profiling line, with two decimals."""
    non_torch_gib: Reading | None = None
    peak_activation_gib: Reading | None = None
    summary_peak_gib: Reading | None = None
    """Peak activation of the closing summary; contains the graph estimate where the engine charges it."""
    consumed_gib: Reading | None = None
    """Weights and everything else that stayed, from 0.27.1 on."""
    non_kv_gib: Reading | None = None
    cuda_graph_gib: Reading | None = None
    cuda_graph_estimate_gib: Reading | None = None
    available_kv_gib: Reading | None = None
    total_gib: Reading | None = None
    free_gib: Reading | None = None
    used_gib: Reading | None = None
    requested_gib: Reading | None = None
    peak_torch_gib: Reading | None = None
    peak_used_gib: Reading | None = None
    """MindSpore: weights, activations and the KV cache together."""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All that is known, in the order of the fields."""
        values = (getattr(self, entry.name) for entry in fields(self))
        return tuple(value for value in values if isinstance(value, Reading))


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFigures:
    """What the engine prints once for all its ranks; the smallest where each rank prints its own."""

    kv_tokens: Reading | None = None
    max_concurrency: Reading | None = None
    concurrency_for_len: Reading | None = None
    num_gpu_blocks: Reading | None = None
    block_size: Reading | None = None
    mamba_padding_percent: Reading | None = None
    auto_fit_from: Reading | None = None
    auto_fit_len: Reading | None = None
    utilization: Reading | None = None
    batched_tokens: Reading | None = None
    context_parallel: Reading | None = None
    model_len: Reading | None = None

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All that is known, in the order of the fields."""
        values = (getattr(self, entry.name) for entry in fields(self))
        return tuple(value for value in values if isinstance(value, Reading))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Smallest and largest value of a figure over the ranks."""

    figure: str
    unit: str
    low: float
    high: float
    ranks: int


_LOGGED: Final = tuple(name for name, flag in FLAGS.items() if flag.log is not LogRule.NEVER)


class LogFlags:
    """Engine arguments in the contract's field names; None where the log does not show them, -1 is `auto`.

    Example:
        >>> flags = LogFlags(max_model_len=8192)
        >>> flags.max_model_len, flags.max_num_seqs
        (8192, None)
    """

    def __init__(self, **values: Any) -> None:
        """Raises TypeError for a flag that no log shows."""
        if unknown := values.keys() - set(_LOGGED):
            raise TypeError(f"no log shows {', '.join(sorted(unknown))}")
        self.values: Mapping[str, Any] = {
            name: values[name] for name in _LOGGED if values.get(name) is not None
        }

    def __getattr__(self, name: str) -> Any:
        if name in _LOGGED:
            return self.values.get(name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogFlags) and self.values == other.values

    def __repr__(self) -> str:
        return f"LogFlags({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"

    def completed(self, **values: Any) -> LogFlags:
        """The same, with what else is known."""
        return LogFlags(**{**self.values, **values})

    @property
    def ranks_per_replica(self) -> int | None:
        """Tensor times pipeline parallel size, when either is known."""
        if self.tensor_parallel_size is None and self.pipeline_parallel_size is None:
            return None
        return (self.tensor_parallel_size or 1) * (self.pipeline_parallel_size or 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedGraphs:
    """CUDA graphs as the engine resolved them: sizes in tokens, ascending, and the mode where the line names it."""

    sizes: tuple[int, ...]
    mode: CudagraphMode | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagLine:
    """A line that flags were read from."""

    kind: str
    """`arguments`, `namespace`, `config`, `command`, `manifest`, `environment` or `compilation`."""
    line_number: int
    line: str


class Phase(StrEnum):
    """How far a start got before it failed."""

    CONFIGURATION = "configuration"
    """Before any memory was taken."""
    LOADING = "loading"
    PROFILING = "profiling"
    KV_CACHE = "kv-cache"
    """The budget was known and too small."""
    GRAPH_CAPTURE = "graph-capture"
    """After the KV cache was allocated: graphs and buffers outside the budget."""
    WARM_UP = "warm-up"
    RUN_TIME = "run-time"
    UNKNOWN = "unknown"
    """The log shows too little before the error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """One number of an error's text."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The smallest single change that should fix a failure. `field` is a contract field."""

    field: str
    value: int | float | str | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error of the engine, recognised."""

    code: str
    phase: Phase
    line_number: int
    line: str
    rank: str = ""
    numbers: tuple[Number, ...] = ()
    change: Change | None = None

    def number(self, name: str) -> float | None:
        """A number of the error's text, or None.

        Example:
            >>> failure = Failure(code="start-no-kv-memory", phase=Phase.KV_CACHE, line_number=1, line="",
            ...                   numbers=(Number(name="max_model_len", value=8192.0),))
            >>> failure.number("max_model_len"), failure.number("other")
            (8192.0, None)
        """
        return next((number.value for number in self.numbers if number.name == name), None)

    @property
    def notice(self) -> Notice:
        """The explanation in plain words and what to do, translated by code as every notice is."""
        params = {number.name: format_number(number.value) for number in self.numbers}
        return Notice(code=self.code, params=params)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartupLog:
    """One start of an engine. Where a log has several, the last."""

    engine: str
    version: str | None
    is_v0: bool | None
    """None where no line tells the V0 engine from V1."""
    model: str | None
    card_name: str | None
    flags: LogFlags
    flag_lines: tuple[FlagLine, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    resolved_quantization: str | None = None
    """Method of the checkpoint, as the engine found it."""
    graphs: LoggedGraphs | None = None
    """What the engine's config line says is captured."""
    figures: EngineFigures = EngineFigures()
    ranks: tuple[RankFigures, ...] = ()
    worst_rank: RankFigures = RankFigures()
    """The rank with the least KV memory; what it did not print is filled in from the others."""
    spreads: tuple[Spread, ...] = ()
    charges_graph_estimate: bool = False
    """Whether the graph estimate was taken off the budget."""
    failures: tuple[Failure, ...] = ()
    """The root cause first."""
    notices: tuple[Notice, ...] = ()
    missing: tuple[str, ...] = ()
    """Figures that this kind of log usually has and this one has not."""

    @property
    def failure(self) -> Failure | None:
        """The root cause, or None for a start that the log does not show failing."""
        return self.failures[0] if self.failures else None

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Figures of the worst rank and of the engine."""
        return self.worst_rank.readings + self.figures.readings


@dataclass(frozen=True, kw_only=True, slots=True)
class LogScenario:
    """What to plan so that the plan can be compared with the log. Field names are the contract's."""

    model: str | None
    engine: str
    engine_version: str | None
    accelerator_memory_gib: float | None
    accelerator_name: str | None
    accelerator_vendor: str | None
    flags: LogFlags
    env: Mapping[str, str]
    measured: Measured

    def as_request(self) -> dict[str, object]:
        """The contract's JSON request; what the log does not show is left out.

        Example:
            >>> LogScenario(model="Qwen/Qwen3-8B", engine="vllm", engine_version="0.19.0",
            ...             accelerator_memory_gib=79.19, accelerator_name=None, accelerator_vendor=None,
            ...             flags=LogFlags(max_model_len=8192), env={}, measured=Measured()).as_request()
            {'model': 'Qwen/Qwen3-8B', 'engine': 'vllm', 'engine_version': '0.19.0', \
'accelerator': {'memory_gib': 79.19}, 'max_model_len': 8192}
        """
        accelerator = {
            "memory_gib": self.accelerator_memory_gib,
            "vendor": self.accelerator_vendor,
            "name": self.accelerator_name,
        }
        request: dict[str, object] = {
            "model": self.model,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "accelerator": _known(accelerator) if accelerator["memory_gib"] or accelerator["name"] else None,
        }
        request |= self.flags.values
        speculative = self.flags.speculative_config
        if speculative is not None:
            request["speculative_config"] = _known(
                {entry.name: getattr(speculative, entry.name) for entry in fields(speculative)}
            )
        if self.flags.limit_mm_per_prompt is not None:
            request["limit_mm_per_prompt"] = dict(self.flags.limit_mm_per_prompt)
        if self.flags.cudagraph_capture_sizes is not None:
            request["cudagraph_capture_sizes"] = list(self.flags.cudagraph_capture_sizes)
        measured = _known(dict(self.measured.values()))
        request["env"] = dict(self.env) or None
        request["measured"] = measured or None
        return _known(request)


def _known(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def format_number(value: float) -> str:
    """A number of the log as a person reads it.

    Example:
        >>> format_number(8192.0), format_number(7.5)
        ('8192', '7.50')
    """
    if value.is_integer():
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
