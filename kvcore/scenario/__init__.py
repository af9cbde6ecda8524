"""What is served, on what, with which flags: frozen inputs in the engine's own flag names, and what handles them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from kvcore.base.parts import MEASURED_FIELDS
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.flags import FLAGS, REGISTRY, Kind
from kvcore.model.config import ModelConfig
from kvcore.tables import wrong

AUTO = "auto"
"""What a dtype flag says for the engine's own choice."""
DEFAULT_ENGINE: Final = "vllm"
"""Where neither a request nor its card says another."""


class Runner(StrEnum):
    """`--runner`: what the engine makes of a model."""

    AUTO = "auto"
    GENERATE = "generate"
    POOLING = "pooling"
    """Embeddings, classes, rewards: no text."""


class CudagraphMode(StrEnum):
    """`cudagraph_mode` of `--compilation-config`: which batches run as CUDA graphs, and how much of a step is one."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    """Every batch, the attention outside."""
    FULL = "FULL"
    """Every batch, the attention inside."""
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"
    """Batches that only decode in full, all others piecewise."""


class Parallel(Struct, frozen=True, kw_only=True):
    """How one replica is cut over ranks, and how many replicas there are."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    all2all_backend: str | None = None
    """By which ranks exchange tokens with whole experts; None is the engine's default, gathering and scattering."""
    num_redundant_experts: int = 0
    """Copies of experts that EPLB balances their load with."""

    @property
    def ranks_per_replica(self) -> int:
        """GPUs of one engine replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks(self) -> int:
        """GPUs of all replicas."""
        return self.ranks_per_replica * self.data_parallel_size


class Origin(StrEnum):
    """Where a given part comes from."""

    MEASURED = "measured"
    """Printed by a log in this configuration, or set by the person."""
    FITTED = "fitted"
    """Not printed: what makes the other parts meet the KV memory of the log."""
    CARRIED = "carried"
    """Taken here from another configuration by the estimate of both."""


class Measured(Struct, frozen=True, kw_only=True):
    """Parts of one rank that the person gives himself, in GiB; each replaces the predicted part.

    `fitted` and `carried` name the parts among them that nobody measured in this configuration.
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

    def values(self) -> dict[str, float]:
        """The parts that are given, in GiB, by their fields.

        Example:
            >>> Measured(weights_gib=15.27, fitted=("weights_gib",)).values()
            {'weights_gib': 15.27}
        """
        return {name: value for name in MEASURED_FIELDS if (value := getattr(self, name)) is not None}

    def origin(self, part: str) -> Origin:
        """Where the given part of that field comes from."""
        if part in self.carried:
            return Origin.CARRIED
        return Origin.FITTED if part in self.fitted else Origin.MEASURED

    def with_origin(self, parts: Iterable[str], origin: Origin) -> Measured:
        """The same figures, those of `parts` said to come from `origin`.

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
    """`names` with `changed` among them or not, in the order of `MEASURED_FIELDS`."""
    kept = changed.union(names) if is_here else frozenset(names) - changed
    return tuple(part for part in MEASURED_FIELDS if part in kept)


class Link(StrEnum):
    """How the cards of a tensor parallel group reach each other."""

    NVLINK = "nvlink"
    """Any fast link inside a machine."""
    PCIE_P2P = "pcie-p2p"
    """PCIe, cards read each other's memory."""
    PCIE = "pcie"
    """PCIe through the host's memory: most clouds and pods."""
    HOSTS = "hosts"
    """Several machines."""


class Installation(StrEnum):
    """Where the engine comes from, and so which kernel libraries are there."""

    IMAGE = "image"
    """The project's own container image."""
    PIP = "pip"
    NGC = "ngc"
    VENDOR = "vendor"
    """A card vendor's or distributor's image or build."""


class Host(StrEnum):
    """What the card's memory is shared with."""

    LINUX = "linux"
    WSL = "wsl"
    UNIFIED = "unified"
    """One memory for processor and card."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """What a start finds around it that no flag says. None is unknown: an estimate then spans the cases."""

    link: Link | None = None
    installation: Installation | None = None
    host: Host | None = None
    driver: str | None = None
    """As the driver's tool prints it: 580.159.03, ROCm 7.2."""
    taken_gib: float | None = None
    """Taken on the card before the start: a display, other processes."""


NEEDED_DRAFTS: Final = frozenset({"draft_model", "dflash", "dspark", "medusa", "mlp_speculator"})
"""Speculative methods whose draft has no usual shape: nothing can be planned without its config."""


class SpeculativeConfig(Struct, frozen=True, kw_only=True):
    """`--speculative-config`."""

    method: str
    num_speculative_tokens: int | None = None
    model: str | None = None
    """A label; `config` is what is planned."""
    config: ModelConfig | None = None
    """Of the draft model or head; None where the method has none, or where it is not known."""
    draft_tensor_parallel_size: int | None = None
    enforce_eager: bool | None = None


class Scenario(Struct, frozen=True, kw_only=True):
    """One deployment to plan. None takes the default of that engine version on that accelerator.

    `model` is a label; `config` is what is planned. `accelerator` is None for a log that does not name its card.
    `max_model_len=-1` is the engine's `auto`.
    """

    model: str
    config: ModelConfig
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    accelerator: Accelerator | None = None
    engine: str = DEFAULT_ENGINE
    """Its name: that of a folder in `kvcore/engine`."""
    engine_version: str | None = None
    parallel: Parallel = Parallel()
    disable_custom_all_reduce: bool = False
    runner: Runner = Runner.AUTO
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
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
    """Of the compilation config's passes; `enable_fi_allreduce_fusion` of older releases."""
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    mamba_cache_mode: str | None = None
    """all, align or none; `none` leaves the choice to the engine, as None does."""
    mamba_block_size: int | None = None
    mamba_cache_dtype: str = AUTO
    """Of all that recurrent layers keep."""
    mamba_ssm_cache_dtype: str = AUTO
    """Of their states, without convolution rows."""
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
    """Items by kind, and what the profile run draws of one: `image`, `image.width`, `video.num_frames`."""
    language_model_only: bool = False
    cpu_offload_gb: float = 0.0
    hf_overrides: str | None = None
    """JSON of a stretched rope (`kvcore.model.rope`), the same for every release; others are not planned."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_transfer_config: str | None = None
    """JSON: what passes KV caches on, and the role of this server (`kvcore/engines/vllm/connectors.py`)."""
    additional_config: str | None = None
    """JSON: settings that a plug-in alone reads (`kvcore/engines/vllm/additional.py`)."""
    env: Mapping[str, str] = field(default_factory=dict)
    skip_mm_profiling: bool = False
    mm_encoder_tp_mode: str = "weights"
    """weights cuts encoders over ranks, data runs a whole one on each."""
    mm_processor_kwargs: Mapping[str, float] | None = None
    """Bounds of pixels, frames and the like for the processor of images and video."""
    surroundings: Surroundings = Surroundings()
    measured: Measured = Measured()


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as the engine writes them: a count, or an object with one where more than that is said.

    Example:
        >>> nested({"video": 0, "image": 2, "image.width": 512})
        {'video': 0, 'image': {'count': 2, 'width': 512}}
    """
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, key = name.partition(".")
        parts.setdefault(head, {})[key or "count"] = value
    return {name: own["count"] if own.keys() == {"count"} else own for name, own in parts.items()}


KEPT_AS_JSON: Final = ("kv_transfer_config", "additional_config")
"""Objects that a scenario keeps as the text of their JSON."""
PARALLEL: Final = frozenset(Parallel.__struct_fields__)
"""Fields of a scenario that stand in its `parallel`."""

_OWN: Final = frozenset({*Scenario.__struct_fields__, *Parallel.__struct_fields__}) - {"parallel"}
_RECORDS: Final[Mapping[str, frozenset[str]]] = {
    "": _OWN | {"hf_quant_config", "headers"},
    "checkpoint": frozenset(Checkpoint.__struct_fields__),
    "measured": frozenset(Measured.__struct_fields__),
    "speculative_config": frozenset(SpeculativeConfig.__struct_fields__),
    "surroundings": frozenset(Surroundings.__struct_fields__),
}
"""Fields of a request, and of its objects that are records; two files stand next to a config."""


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
    """What stands under keys with dots between, None where one of them is not there."""
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
