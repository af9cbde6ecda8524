"""The inputs of a plan: model, accelerator, engine and flags, as frozen records in the engine's own flag names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache, wraps
from hashlib import blake2b
from itertools import compress
from operator import attrgetter, is_not
from typing import Any, Final, TypeVar

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

from kvcore.base.errors import shorten
from kvcore.base.kept import found_with
from kvcore.base.parts import MEASURED_FIELDS
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.flags import FLAGS, REGISTRY, Kind
from kvcore.model.config import ModelConfig
from kvcore.tables import wrong

T = TypeVar("T")
PRINTED_CHARACTERS: Final = 160
"""Longest line of a scenario as it prints itself."""
AUTO = "auto"
"""Value of a dtype flag that leaves the choice to the engine."""
DEFAULT_ENGINE: Final = "vllm"
"""The engine where neither a request nor its card implies another."""


class Runner(StrEnum):
    """`--runner`: the use of a model."""

    AUTO = "auto"
    GENERATE = "generate"
    POOLING = "pooling"
    """Embeddings, classes, rewards: no text."""


class CudagraphMode(StrEnum):
    """`cudagraph_mode` of `--compilation-config`: batches that run as CUDA graphs, and the part of a step in one."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    """Every batch, the attention outside."""
    FULL = "FULL"
    """Every batch, the attention inside."""
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"
    """Batches that only decode in full, all others piecewise."""


class Parallel(Struct, frozen=True, kw_only=True):
    """The division of a replica over ranks, and the number of replicas."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    """Ranks that share the tokens of a prompt, each with all that a tensor parallel rank stores."""
    enable_expert_parallel: bool = False
    all2all_backend: str | None = None
    """Backend by which ranks exchange tokens with whole experts; None is the engine's default, gather and scatter."""
    num_redundant_experts: int = 0
    """Copies of experts by which EPLB balances the load."""
    layer_partition: tuple[int, ...] = ()
    """Layers of each pipeline stage, where a variable states them: set by the plan, never by a request."""

    @property
    def ranks_per_replica(self) -> int:
        """GPUs of one engine replica."""
        return self.tensor_parallel_size * self.prefill_context_parallel_size * self.pipeline_parallel_size

    @property
    def expert_groups(self) -> int:
        """Tensor parallel groups that one mixture's experts are divided over: data and prefill context parallel.

        Source: vllm/model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig.flatten_tp_across_dp_and_pcp
        (0.33.0).
        """
        return self.data_parallel_size * self.prefill_context_parallel_size

    @property
    def ranks(self) -> int:
        """GPUs of all replicas."""
        return self.ranks_per_replica * self.data_parallel_size


class Origin(StrEnum):
    """Origin of a given part of memory."""

    MEASURED = "measured"
    """Printed by a log in this configuration, or set by the person."""
    FITTED = "fitted"
    """Not printed: fitted so that all parts meet the KV memory of the log."""
    CARRIED = "carried"
    """Moved from another configuration as the estimate moves."""


class Measured(Struct, frozen=True, kw_only=True):
    """Given parts of one rank, in GiB; each replaces the predicted part.

    `fitted` and `carried` name those of them that were not measured in this configuration.
    """

    weights_gib: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graph_gib: float | None = None
    system_gib: float | None = None
    available_kv_gib: float | None = None
    fitted: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    batched_tokens: int | None = None
    """`max_num_batched_tokens` of the start in which the activations were measured."""
    free_before_weights_gib: float | None = None
    """Memory that was free before the weights, as an engine prints it that takes its share of that."""
    free_after_weights_gib: float | None = None

    def values(self) -> dict[str, float]:
        """The given parts in GiB, by their fields.

        Example:
            >>> Measured(weights_gib=15.27, fitted=("weights_gib",)).values()
            {'weights_gib': 15.27}
        """
        return {name: value for name in MEASURED_FIELDS if (value := getattr(self, name)) is not None}

    def origin(self, part: str) -> Origin:
        """The origin of a given part, by its field."""
        if part in self.carried:
            return Origin.CARRIED
        return Origin.FITTED if part in self.fitted else Origin.MEASURED

    def with_origin(self, parts: Iterable[str], origin: Origin) -> Measured:
        """The same figures, with `origin` as the origin of `parts`.

        Example:
            >>> both = Measured(weights_gib=15.27, fitted=("weights_gib",))
            >>> both.with_origin(("weights_gib",), Origin.CARRIED).carried
            ('weights_gib',)
        """
        changed = frozenset(parts)
        return replace(
            self,
            fitted=_named(self.fitted, changed, origin is Origin.FITTED),
            carried=_named(self.carried, changed, origin is Origin.CARRIED),
        )


def _named(names: tuple[str, ...], changed: frozenset[str], is_here: bool) -> tuple[str, ...]:
    """`names` with `changed` added or removed, in the order of `MEASURED_FIELDS`."""
    kept = changed.union(names) if is_here else frozenset(names) - changed
    return tuple(part for part in MEASURED_FIELDS if part in kept)


class Link(StrEnum):
    """Links between the cards of a tensor parallel group."""

    NVLINK = "nvlink"
    """Any fast link inside a machine."""
    PCIE_P2P = "pcie-p2p"
    """PCIe, cards read each other's memory."""
    PCIE = "pcie"
    """PCIe through the host's memory: most clouds and pods."""
    HOSTS = "hosts"
    """Several machines."""


class Installation(StrEnum):
    """Ways to install the engine, which differ in their kernel libraries."""

    IMAGE = "image"
    """The project's own container image."""
    PIP = "pip"
    NGC = "ngc"
    VENDOR = "vendor"
    """A card vendor's or distributor's image or build."""


class Host(StrEnum):
    """Hosts, by what they share the card's memory with."""

    LINUX = "linux"
    WSL = "wsl"
    UNIFIED = "unified"
    """One memory for processor and card."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """Surroundings of a start that no flag sets. None is unknown: the estimate then spans all cases."""

    link: Link | None = None
    installation: Installation | None = None
    host: Host | None = None
    driver: str | None = None
    """Version as the driver's tool prints it: 580.159.03, ROCm 7.2."""
    taken_gib: float | None = None
    """Memory in use on the card before the start: a display, other processes."""


NEEDED_DRAFTS: Final = frozenset({"draft_model", "dflash", "dspark", "medusa", "mlp_speculator"})
"""Speculative methods whose drafts cannot be planned without their config."""


class SpeculativeConfig(Struct, frozen=True, kw_only=True):
    """`--speculative-config`."""

    method: str
    num_speculative_tokens: int | None = None
    model: str | None = None
    """A label; `config` is planned."""
    config: ModelConfig | None = None
    """Config of the draft model or head; None where the method has none, or where it is not known."""
    draft_tensor_parallel_size: int | None = None
    enforce_eager: bool | None = None


class Scenario(Struct, frozen=True, kw_only=True):
    """One deployment to plan. None takes the default of that engine version on that accelerator.

    `model` is a label; `config` is planned. `accelerator` is None for a log that does not name its card.
    `max_model_len=-1` is the engine's `auto`.
    """

    model: str
    config: ModelConfig
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    accelerator: Accelerator | None = None
    engine: str = DEFAULT_ENGINE
    """Name of the engine: that of a folder in `kvcore/engines`, with dashes."""
    engine_version: str | None = None
    parallel: Parallel = Parallel()
    disable_custom_all_reduce: bool = False
    runner: Runner = Runner.AUTO
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    indexer_kv_dtype: str = "auto"
    """Dtype of the keys by which sparse attention picks what it looks at."""
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    wanted: int | None = None
    """Requests of that length which the deployment is to serve at once, over all replicas; None: no target. Changes no
    number of the plan."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    max_cudagraph_capture_size: int | None = None
    """In tokens; `--cuda-graph-sizes N` of older releases."""
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    """In tokens, ascending, each once."""
    cudagraph_mode: CudagraphMode | None = None
    fuse_allreduce_rms: bool | None = None
    """A pass of the compilation config; `enable_fi_allreduce_fusion` in older releases."""
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    mamba_cache_mode: str | None = None
    """all, align or none; `none` leaves the choice to the engine, as None does."""
    mamba_block_size: int | None = None
    mamba_cache_dtype: str = AUTO
    """Dtype of everything that recurrent layers keep."""
    mamba_ssm_cache_dtype: str = AUTO
    """Dtype of their states, without convolution rows."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """None leaves it to the release: off with a connector that does not know groups of layers."""
    kernels_compiled: bool = False
    """The start finds its kernels in the compile cache: a restart, not a first start."""
    speculative_config: SpeculativeConfig | None = None
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    fully_sharded_loras: bool = False
    limit_mm_per_prompt: Mapping[str, int] | None = None
    """Items by kind, and the sizes that the profile run uses: `image`, `image.width`, `video.num_frames`."""
    language_model_only: bool = False
    cpu_offload_gb: float = 0.0
    hf_overrides: str | None = None
    """JSON of a stretched rope (`kvcore.model.rope`), the same for every release; others are not planned."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_transfer_config: str | None = None
    """JSON: the connector of KV caches, and the role of this server (`kvcore/engines/vllm/connectors.py`)."""
    kv_offloading_size: float | None = None
    """GiB of the machine's memory for finished prefixes, over all ranks of a replica; a connector then moves them."""
    kv_offloading_backend: str = "native"
    lmcache_version: str | None = None
    """Of LMCache in the engine's own processes; None is one that pins exactly what it is told."""
    enable_sleep_mode: bool = False
    node_memory_gib: float | None = None
    """Of the machine, or the limit of the container; None is unknown."""
    shm_gib: float | None = None
    """Size of /dev/shm; None is unknown."""
    other_engines: str | None = None
    """Engines that share the card, in the order of start (`kvcore/planning/neighbours.py`)."""
    link_gb_s: float | None = None
    """10^9 bytes a second that the link of each card to another pool of servers carries; None is unknown."""
    additional_config: str | None = None
    """JSON: settings that only a plug-in reads (`kvcore/engines/vllm/additional.py`)."""
    server_args: str | None = None
    """JSON: arguments of an engine that no field of a request means, under its own names."""
    env: Mapping[str, str] = field(default_factory=dict)
    skip_mm_profiling: bool = False
    mm_encoder_tp_mode: str = "weights"
    """weights divides encoders over ranks, data runs a whole one on each."""
    mm_processor_kwargs: Mapping[str, float] | None = None
    """Bounds of pixels, frames and the like for the processor of images and video."""
    surroundings: Surroundings = Surroundings()
    measured: Measured = Measured()

    def __hash__(self) -> int:
        """Equal scenarios have the same; variables and limits, which are mappings, are left to the comparison."""
        return hash((self.model, self.config, self.accelerator, self.engine, self.engine_version, self.parallel,
                     self.max_model_len, self.max_num_seqs, self.gpu_memory_utilization))  # fmt: skip

    def __repr__(self) -> str:
        """Three lines: what is served on what, the engine, the flags that are set."""
        card = "a card that is not named" if self.accelerator is None else self.accelerator.id
        names = sorted(set_fields(self) - {"accelerator", "checkpoint", "engine", "engine_version"})
        flags = ", ".join(f"{name}={_plain_text(value_of(self, name))}" for name in names)
        version = self.engine_version or "newest release"
        return "\n".join(
            shorten(line, PRINTED_CHARACTERS)
            for line in (
                f"Scenario: {self.model} on {self.parallel.ranks} × {card}",
                f"  {self.engine}, {version}",
                f"  {flags or 'no flag is set'}",
            )
        )


def _plain_text(value: object) -> str:
    """A value in one line: an enum as the engine spells it, a record by its fields that are set."""
    if isinstance(value, Struct):
        said = {name: getattr(value, name) for name in value.__struct_fields__ if name != "config"}
        return "{" + ", ".join(f"{name}: {one}" for name, one in said.items() if one not in (None, ())) + "}"
    return str(value) if isinstance(value, StrEnum) else repr(value)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as the engine writes them: a count, or an object where there is more than a count.

    Example:
        >>> nested({"video": 0, "image": 2, "image.width": 512})
        {'video': 0, 'image': {'count': 2, 'width': 512}}
    """
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, key = name.partition(".")
        parts.setdefault(head, {})[key or "count"] = value
    return {name: own["count"] if own.keys() == {"count"} else own for name, own in parts.items()}


KEPT_AS_JSON: Final = ("kv_transfer_config", "additional_config", "server_args")
"""Objects that a scenario has as JSON text."""
PARALLEL: Final = tuple(name for name in Parallel.__struct_fields__ if name != "layer_partition")
"""Fields of a scenario's `parallel` that a request may set."""
_SET: Final = tuple(
    name for name in Scenario.__struct_fields__ if name not in ("model", "config", "parallel")
)
_FLAGS: Final = (*_SET, *PARALLEL)
_set_in: Final = attrgetter(*_SET)
_cut_in: Final = attrgetter(*PARALLEL)

_OWN: Final = frozenset({*Scenario.__struct_fields__, *PARALLEL}) - {"parallel"}
_RECORDS: Final[Mapping[str, frozenset[str]]] = {
    "": _OWN | {"hf_quant_config", "headers", "draft_config"},
    "checkpoint": frozenset(Checkpoint.__struct_fields__),
    "measured": frozenset(Measured.__struct_fields__),
    "speculative_config": frozenset(SpeculativeConfig.__struct_fields__),
    "surroundings": frozenset(Surroundings.__struct_fields__),
}
"""Fields of a request and of those of its objects that are records; two of a request are files next to a config."""


def require_rows(names: Iterable[str]) -> None:
    """Raises TableError `invalid-catalogue-entry` unless `names` are all fields of a request's records."""
    rows = {name: name.rpartition(".") for name in names}
    for name, (parent, _, key) in rows.items():
        if key not in _RECORDS.get(parent, (key,)):
            owner = parent or "a request"
            raise wrong(
                f"{REGISTRY.file} flag {name}", f"{owner} has only {', '.join(sorted(_RECORDS[parent]))}"
            )
    said = {(parent, key) for parent, _, key in rows.values()}
    for parent, keys in _RECORDS.items():
        for key in sorted(keys):
            if (parent, key) not in said:
                raise wrong(f"{REGISTRY.file} flag", f"{f'{parent}.{key}' if parent else key} has no row")


require_rows(name for name, flag in FLAGS.items() if flag.kind is not Kind.ANY)


@cache
def unset_scenario() -> Scenario:
    """A scenario in which no flag is set, of no model."""
    return Scenario(model="", config=ModelConfig.from_mapping({}))


def set_fields(scenario: Scenario) -> frozenset[str]:
    """The fields that are set, those of `parallel` by their own names.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "tensor_parallel_size": 2, "max_num_seqs": 64, "enable_lora": False}
        >>> sorted(set_fields(scenario_from_request(asked)))
        ['checkpoint', 'max_num_seqs', 'tensor_parallel_size']
    """
    values, unset = _values_in(scenario), _unset_values()
    others = compress(zip(_FLAGS, values, unset, strict=True), map(is_not, values, unset))
    return frozenset([name for name, value, default in others if value != default])


def _values_in(scenario: Scenario) -> tuple[Any, ...]:
    """The values of `_FLAGS`."""
    return *_set_in(scenario), *_cut_in(scenario.parallel)


@cache
def _unset_values() -> tuple[Any, ...]:
    return _values_in(unset_scenario())


def value_of(scenario: Scenario, field: str) -> Any:
    """The value of a field by its name in a request; None for a field of an object that is not there.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "measured": {"weights_gib": 15.3}})
        >>> value_of(scenario, "tensor_parallel_size"), value_of(scenario, "measured.weights_gib")
        (1, 15.3)
    """
    head, _, key = field.partition(".")
    owner = getattr(scenario.parallel if head in PARALLEL else scenario, head)
    if not key or owner is None:
        return owner
    if head in KEPT_AS_JSON:
        return _value_in(json.loads(owner), key)
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key)


def _value_in(values: object, path: str) -> Any:
    """The value under keys separated by dots; None where one is missing."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def without_state_flags(scenario: Scenario) -> Scenario:
    """`scenario` with the flags about recurrent states and rope left to the engine: they are one model's own."""
    return replace(
        scenario,
        mamba_cache_mode=None,
        mamba_block_size=None,
        mamba_cache_dtype=AUTO,
        mamba_ssm_cache_dtype=AUTO,
        hf_overrides=None,
    )


def cached_answer(function: Callable[[Scenario], T]) -> Callable[[Scenario], T]:
    """Caches what `function` returns with the scenario's config, by a digest of all other fields.

    So nothing that a visitor wrote outlives the visit, except in the answer itself: it must not refer to the scenario.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> @cached_answer
        ... def share(scenario: Scenario) -> list[float | None]:
        ...     return [scenario.gpu_memory_utilization]
        >>> asked = {"model": "Qwen/Qwen3-32B", "gpu_memory_utilization": 0.8}
        >>> one, other = (scenario_from_request(asked | {"engine_version": name}) for name in ("0.30.0", "0.31.0"))
        >>> share(one) is share(scenario_from_request(asked | {"engine_version": "0.30.0"})), share(one) is share(other)
        (True, False)
    """

    @wraps(function)
    def asked(scenario: Scenario) -> T:
        try:
            others = msgpack.encode(replace(scenario, config=None))
        except (OverflowError, TypeError, ValueError):
            # No digest, for example of an 80-bit number in a connector's settings: computed each time.
            return function(scenario)
        return found_with(scenario.config, (function, blake2b(others).digest()), lambda: function(scenario))

    return asked
