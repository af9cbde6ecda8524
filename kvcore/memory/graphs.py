"""CUDA graphs (ACL graphs on Ascend): what they take, and what the engine takes off the budget for them."""

import math
from bisect import bisect_right
from typing import Annotated, Final, TypeAlias, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.kept import kept
from kvcore.base.quantity import Grade, Quantity, Unit, explained, figure, given
from kvcore.base.units import KIB, ceil_div
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.overheads import GraphRate, Layers
from kvcore.engine.protocol import Setting
from kvcore.engine.setting import has_indexer, own_overheads
from kvcore.engine.switches import AttentionBackend
from kvcore.engine.switches import GraphEstimate as EstimateRule
from kvcore.memory.activations import ACTIVATIONS, FLOAT32_BYTES, layer_elements
from kvcore.model.architecture import Architecture, caches_of
from kvcore.model.caches import ChunkedLocal, FullAttention, Mla, SlidingWindow
from kvcore.scenario import Link
from kvcore.tables import (
    Capability,
    CapabilityNumber,
    Count,
    Record,
    ReleaseRange,
    Reviewed,
    Share,
    Source,
    TableFile,
)

WORKSPACE_VARIABLE: Final = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
"""In bytes. Source: vllm/envs.py (0.11.2, 0.32.0)."""

CapabilityRange: TypeAlias = tuple[CapabilityNumber, CapabilityNumber]


class Driver(Record, frozen=True, kw_only=True):
    """How many times as much a graph takes where the driver is older than `modern`."""

    source: Source
    modern: Annotated[int, Meta(ge=1, le=10_000)]
    factor: Annotated[float, Meta(ge=1.0, le=100.0)]


class UnknownDriver(ReleaseRange, frozen=True, kw_only=True):
    """The same on hosts of cards of one compute capability or vendor whose driver is not known: likely, and at the most
    and least."""

    source: Source
    factor: Annotated[float, Meta(ge=0.1, le=100.0)]
    most: Annotated[float, Meta(ge=0.1, le=100.0)]
    least: Annotated[float, Meta(ge=0.1, le=100.0)] | None = None
    """None: the likely factor."""
    capability: Capability | None = None
    vendor: Vendor | None = None


class Nccl(Record, frozen=True, kw_only=True):
    """Bytes of each captured call of NCCL; `perhaps`: where the calls may be NCCL's or not, and how much more."""

    source: Source
    calls_per_layer: Count
    bytes_per_call: Annotated[float, Meta(ge=0.0, le=1e8)]
    perhaps: Annotated[float, Meta(ge=0.0, le=1e8)]


class FlashInfer(Record, frozen=True, kw_only=True):
    """Its workspace, at least so many bytes for an element of the batch's queries, and that of each decode wrapper."""

    source: Source
    kib: Count
    wrapper_kib: Count
    batch_since: Version
    batch_bytes: Count


class SharedWorkspace(ReleaseRange, frozen=True, kw_only=True):
    """Cards on which the workspace is one for the process; where it is not sure, graphs may bring one of their own."""

    source: Source
    capability: CapabilityRange
    is_sure: bool


class AttentionSplits(Record, frozen=True, kw_only=True):
    """The most splits of FlashAttention 3 in full graphs, and the compute capability that it runs on."""

    source: Source
    capability: Capability
    splits: Annotated[int, Meta(ge=1, le=1024)]


class Workspace(Record, frozen=True, kw_only=True):
    """Workspace of cuBLAS on one stream; capability None matches any."""

    source: Source
    kib: Count
    capability: Capability | None = None


class GraphEstimate(Record, frozen=True, kw_only=True):
    """The engine's own estimate; `v2_share`: of the rate, what the V2 runner finds."""

    source: Source
    v2_share: Share
    spread_share: Share


class GraphTables(Reviewed, frozen=True, kw_only=True):
    """graphs.toml."""

    rates: tuple[GraphRate, ...]
    driver: Driver
    unknown_driver: tuple[UnknownDriver, ...]
    attention_splits: AttentionSplits
    nccl: Nccl
    gemm_workspace: tuple[Workspace, ...]
    estimate: GraphEstimate
    flashinfer: FlashInfer
    shared_workspace: tuple[SharedWorkspace, ...]

    def __post_init__(self) -> None:
        if {rate.kind for rate in self.rates} != set(get_args(Layers)):
            raise ValueError(f"rates are of {', '.join(get_args(Layers))}")


GRAPHS: Final = TableFile("kvcore.memory", "graphs.toml", GraphTables)


def graph_bytes(
    graphs: int,
    layers: int,
    bytes_per_graph_and_layer: float,
    largest_batch: int,
    attention_splits: int,
    workspaces: int,
    collectives: int,
) -> int:
    """A rate for each graph and layer, what all graphs share, and the calls of NCCL in them."""
    own = math.trunc(graphs * layers * bytes_per_graph_and_layer)
    return own + largest_batch + attention_splits + workspaces + collectives


class CapturedGraphs(Struct, frozen=True, kw_only=True):
    """Memory of captured graphs on one rank, in bytes but for `count`."""

    count: int = 0
    bytes_per_graph_and_layer: float
    largest_batch: int = 0
    attention_splits: int = 0
    workspaces: int = 0
    """Workspaces of cuBLAS, and of an attention that allocates its own."""
    estimated_workspaces: int = 0
    """The part of them in the engine's own estimate: it runs first, and allots what the process shares."""
    collectives: int = 0
    """Calls of NCCL."""
    perhaps: int = 0
    """Bytes that may come on top: an older driver's, a workspace of their own, piecewise graphs next to full ones, or
    NCCL's."""
    perhaps_less: int = 0
    """Bytes that may not be there."""

    def bytes_of(self, layers: int) -> int:
        """count × layers × rate + what all graphs share."""
        return graph_bytes(
            self.count,
            layers,
            self.bytes_per_graph_and_layer,
            self.largest_batch,
            self.attention_splits,
            self.workspaces,
            self.collectives,
        )

    def quantity(self, name: str, layers: int, spread_share: float, source: str) -> Quantity:
        """`bytes_of` with what it is made of."""
        value, rate = self.bytes_of(layers), self.bytes_per_graph_and_layer
        less = max(spread_share * value, self.perhaps_less)
        more = max(spread_share * value, self.perhaps)
        return explained(
            name,
            graph_bytes,
            given("graphs", self.count, grade=Grade.DERIVED),
            given("layers", layers, Unit.LAYERS, Grade.DERIVED),
            given("bytes_per_graph_and_layer", rate, Unit.BYTES, Grade.FITTED),
            given("largest_batch", self.largest_batch, Unit.BYTES, Grade.FITTED),
            given("attention_splits", self.attention_splits, Unit.BYTES, Grade.DERIVED),
            given("workspaces", self.workspaces, Unit.BYTES, Grade.DERIVED),
            given("collectives", self.collectives, Unit.BYTES, Grade.FITTED),
            grade=Grade.FITTED if self.count else Grade.EXACT,
            source=source,
            interval=(value - less, value + more),
        )


def cuda_graph_bytes(setting: Setting, captured: CapturedGraphs | None = None) -> Quantity:
    """Bytes that captured graphs really take on one rank.

    graphs × layers × a rate by kind of layer: what the driver keeps of each kernel of each graph. With it, once: the
    graphs share one memory pool and the largest is captured first, so that the pool has one layer's activations of the
    largest batch, and the partial outputs of split attention (FlashAttention 3); cuBLAS allots a workspace to the
    stream of the capture. `captured`: the graphs, where they are known already.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.capture_model, vllm/compilation/cuda_graph.py:
    CUDAGraphWrapper (0.19.0).
    """
    kind, captured = graph_rate(setting), captured or captured_graphs(setting)
    return captured.quantity("cuda_graphs", setting.layers, kind.spread_share, kind.source)


def counted_graph_bytes(
    setting: Setting, actual: Quantity, captured: CapturedGraphs | None = None
) -> Quantity:
    """Bytes that the engine's own estimate takes off the budget: 0 before 0.20; a given figure stands for both.

    It captures the two largest graphs of each mode and multiplies: the same figure, with a scatter of its own. The V2
    runner multiplies only full graphs, and finds less for each. `captured`: what is captured, where that is known.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.profile_cudagraph_memory (0.18.1, 0.20.2), vllm/v1/worker/
    gpu/cudagraph_utils.py:profile_cudagraph_memory (0.32.0).
    """
    if setting.scenario.measured.cuda_graph_gib is not None and counts_estimate(setting):
        return replace(actual, name="counted_graphs")
    row = GRAPHS.load().estimate
    if not graph_count(setting) or not counts_estimate(setting):
        return figure("counted_graphs", 0, grade=Grade.EXACT, source=row.source, spread=0.0)
    captured = captured or captured_graphs(setting)
    if setting.runner != "v2" and not attention_workspace_bytes(setting) and not captured.collectives:
        spread = row.spread_share * actual.value
        interval = (actual.value - spread, actual.value + spread)
        return replace(actual, name="counted_graphs", source=row.source, interval=interval)
    estimated = estimated_graphs(setting, captured)
    return estimated.quantity("counted_graphs", setting.layers, row.spread_share, row.source)


def captured_graphs(setting: Setting) -> CapturedGraphs:
    """The captured graphs, part by part."""
    count = graph_count(setting)
    rate = graph_rate(setting).of(setting.architecture.hidden_size)
    if not count:
        return CapturedGraphs(bytes_per_graph_and_layer=rate)
    own, shared = attention_workspace_bytes(setting), shared_workspace(setting)
    workspaces = gemm_workspace_bytes(setting) + wrapper_bytes(setting, own)
    factor, most, least = driver_factors(setting)
    apart = len(setting.resolved.cudagraph_modes) > 1 and not captures_piecewise(setting)
    graphs = count * (most - factor) + len(setting.resolved.cudagraph_capture_sizes) * apart
    collectives, unsure = nccl_bytes(setting, count)
    perhaps = int(graphs * setting.layers * rate) + own * (shared is not None and not shared.is_sure) + unsure
    return CapturedGraphs(
        count=count,
        bytes_per_graph_and_layer=rate * factor,
        largest_batch=largest_batch_bytes(setting),
        attention_splits=attention_split_bytes(setting),
        workspaces=workspaces + (own if shared is None else 0),
        estimated_workspaces=workspaces + own,
        collectives=collectives,
        perhaps=perhaps,
        perhaps_less=int(count * (factor - least) * setting.layers * rate) + collectives,
    )


def nccl_bytes(setting: Setting, graphs: int) -> tuple[int, int]:
    """Bytes of NCCL's calls in so many graphs, and how many more they may be.

    They are NCCL's where vLLM's own all-reduce is off: without P2P, and for more than two ranks without NVLink. By P2P
    NCCL keeps less, if anything.

    Source: `nccl` of graphs.toml.
    """
    row, ranks = GRAPHS.load().nccl, setting.parallel.tensor_parallel_size
    if setting.accelerator.vendor is not Vendor.NVIDIA or ranks == 1 or setting.runner == "v0":
        return 0, 0
    calls = graphs * setting.layers * row.calls_per_layer
    perhaps = int(calls * row.perhaps)
    if setting.links == (Link.PCIE,):
        return int(calls * row.bytes_per_call), perhaps
    joins_by_slots = setting.links[0] == Link.PCIE or (Link.PCIE_P2P in setting.links and ranks > 2)
    return 0, perhaps if joins_by_slots else 0


def estimated_graphs(setting: Setting, captured: CapturedGraphs | None = None) -> CapturedGraphs:
    """The graphs in the engine's own estimate, whether or not it is taken off the budget: two of four published ones
    with calls of NCCL have nothing of them.
    """
    captured = captured or captured_graphs(setting)
    share = GRAPHS.load().estimate.v2_share if setting.runner == "v2" else 1.0
    return replace(
        captured,
        bytes_per_graph_and_layer=captured.bytes_per_graph_and_layer * share,
        workspaces=captured.estimated_workspaces,
        collectives=0,
        perhaps=captured.collectives,
        perhaps_less=0,
    )


def largest_batch_bytes(setting: Setting) -> int:
    """One layer's activations of the largest captured batch: tokens × (3 hidden + 3 intermediate / tp) elements.

    Smaller graphs reuse them: sizes are captured in descending order into one pool.

    Source: vllm/v1/cudagraph_dispatcher.py:CudagraphDispatcher.get_capture_descs (0.19.0).
    """
    elements = layer_elements(setting, ACTIVATIONS.load().body.hidden_vectors)
    sizes = setting.resolved.cudagraph_capture_sizes
    largest = sizes[-1] if captures_piecewise(setting) else sizes[full_count(setting) - 1]
    return int(largest * elements * setting.element_bytes)


def attention_split_bytes(setting: Setting) -> int:
    """Partial outputs of FlashAttention 3 in full graphs: splits × tokens × heads / tp × head size in float32.

    The scheduler may split a request's keys at replay, so that capture reserves the most splits for the largest batch.

    Source: vllm/v1/attention/backends/flash_attn.py:FlashAttentionMetadataBuilder.build, vllm/v1/attention/backends/
    mla/flashattn_mla.py, vllm/config/attention.py:flash_attn_max_num_splits_for_cuda_graph (0.11.0, 0.19.0, 0.32.0).
    """
    row, full, resolved = GRAPHS.load().attention_splits, full_count(setting), setting.resolved
    if not full or setting.runner not in ("v1", "v2") or setting.capability != row.capability:
        return 0
    if not resolved.attention_backend.startswith("FLASH_ATTN"):
        return 0
    heads = ceil_div(setting.architecture.num_attention_heads, setting.parallel.tensor_parallel_size)
    tokens = resolved.cudagraph_capture_sizes[full - 1]
    return row.splits * tokens * heads * output_head_size(setting.architecture) * FLOAT32_BYTES


@kept
def output_head_size(architecture: Architecture) -> int:
    """Numbers that one head of the widest attention layer puts out; for MLA, which decodes on latents, their rank."""
    return max(
        (
            cache.kv_lora_rank if isinstance(cache, Mla) else cache.head_size_v
            for cache in caches_of(architecture)
            if isinstance(cache, FullAttention | SlidingWindow | ChunkedLocal | Mla)
        ),
        default=0,
    )


def gemm_workspace_bytes(setting: Setting) -> int:
    """The workspace that cuBLAS gets on the stream of the capture."""
    if not setting.engine.has_cuda_kernels:
        return 0
    rows = GRAPHS.load().gemm_workspace
    return next(row.kib for row in rows if row.capability in (None, setting.capability)) * KIB


def attention_workspace_bytes(setting: Setting) -> int:
    """FlashInfer's workspace, where it attends, with full graphs; of wrappers batch × heads / tp × head size × 16 bytes
    and more.

    Source: vllm/v1/attention/backends/flashinfer.py:FlashInferMetadataBuilder._get_workspace_buffer (0.25.1, 0.26.0).
    """
    if not runs_flashinfer(setting) or not full_count(setting):
        return 0
    asked, row = setting.scenario.env.get(WORKSPACE_VARIABLE, ""), GRAPHS.load().flashinfer
    given_bytes = int(asked) if asked.isdecimal() else row.kib * KIB
    if setting.resolved.version < row.batch_since or decodes_elsewhere(setting):
        return given_bytes
    heads = ceil_div(setting.architecture.num_attention_heads, setting.parallel.tensor_parallel_size)
    elements = setting.resolved.max_num_batched_tokens * heads * output_head_size(setting.architecture)
    return max(given_bytes, elements * row.batch_bytes)


def runs_flashinfer(setting: Setting) -> bool:
    """Whether FlashInfer's kernels attend: they are CUDA's, and a model without attention has nothing for them.

    Source: vllm/platforms/rocm.py:RocmPlatform.get_attn_backend_cls, vllm/platforms/xpu.py:XPUPlatform.
    get_attn_backend_cls (0.20.0, 0.33.0).
    """
    is_taken = setting.resolved.attention_backend == AttentionBackend.FLASHINFER
    is_nvidia = setting.accelerator.vendor is Vendor.NVIDIA
    return is_taken and is_nvidia and output_head_size(setting.architecture) > 0


def wrapper_bytes(setting: Setting, attention_bytes: int) -> int:
    """The workspaces of FlashInfer's decode wrappers, if its own takes any: one for each batch that is captured in
    full."""
    is_own = attention_bytes and not decodes_elsewhere(setting)
    return GRAPHS.load().flashinfer.wrapper_kib * KIB * full_count(setting) if is_own else 0


def decodes_elsewhere(setting: Setting) -> bool:
    """Whether other kernels than FlashInfer's wrappers decode on the card, in the workspace of the process."""
    return (row := shared_workspace(setting)) is not None and row.is_sure


def shared_workspace(setting: Setting) -> SharedWorkspace | None:
    """The row by which the graphs find the workspace of the estimate; None where it goes with the estimate."""
    rows = (row for row in GRAPHS.load().shared_workspace if _lies_in(setting, row.capability))
    return next((row for row in rows if row.covers(setting.resolved.version)), None)


def _lies_in(setting: Setting, capability: CapabilityRange) -> bool:
    major, minor = setting.accelerator.compute_capability or (0, 0)
    return capability[0] <= 10 * major + minor <= capability[1]


def counts_estimate(setting: Setting) -> bool:
    """Whether this version and runner take graphs off the budget, on a card of this vendor.

    Source: vllm/v1/worker/gpu_worker.py:Worker.determine_available_memory (0.18.0, 0.20.0, 0.21.0, 0.26.0, 0.31.0).
    """
    is_left_out = setting.runner == "v2" and not setting.switches.v2_graph_estimate
    rule = setting.switches.graph_estimate
    if is_left_out or setting.runner == "v0" or rule is EstimateRule.NONE:
        return False
    if not setting.engine.estimates_graphs(setting):
        return False
    asked = setting.scenario.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    return asked != "0" if rule is EstimateRule.COUNTED else asked == "1"


def full_count(setting: Setting) -> int:
    """Graphs captured in full: batches of at most max_num_seqs requests, the first of the ascending sizes; every size
    where mixed batches are captured in full.

    Source: vllm/v1/cudagraph_dispatcher.py:CudagraphDispatcher.initialize_cudagraph_keys (0.11.0, 0.19.0, 0.32.0).
    """
    resolved = setting.resolved
    if "FULL" not in resolved.cudagraph_modes:
        return 0
    if resolved.captures_mixed_full:
        return len(resolved.cudagraph_capture_sizes)
    widest = resolved.max_num_seqs * (1 + resolved.num_speculative_tokens)
    return bisect_right(resolved.cudagraph_capture_sizes, widest)


def captures_piecewise(setting: Setting) -> bool:
    """Whether every size is captured piecewise."""
    modes = setting.resolved.cudagraph_modes
    return "PIECEWISE" in modes and ("FULL" not in modes or setting.engine.captures_pieces_with_full)


def graph_count(setting: Setting) -> int:
    """Captured graphs: each size piecewise, and in full those of at most max_num_seqs requests; twice with LoRA."""
    pieces = len(setting.resolved.cudagraph_capture_sizes) if captures_piecewise(setting) else 0
    doubled = setting.scenario.enable_lora and setting.switches.adapters_double_graphs
    return (pieces + full_count(setting)) * (2 if doubled else 1)


def driver_factors(setting: Setting) -> tuple[float, float, float]:
    """How many times as much each graph takes on this host, at the most and at the least: older drivers keep more of a
    kernel, and AMD's."""
    table, version = GRAPHS.load(), setting.resolved.version
    driver, vendor = setting.scenario.surroundings.driver, setting.accelerator.vendor
    if driver is not None and vendor is Vendor.NVIDIA:
        major = driver.split(".")[0]
        is_old = major.isdecimal() and int(major) < table.driver.modern and setting.capability
        factor = table.driver.factor if is_old else 1.0
        return factor, factor, factor
    for row in table.unknown_driver:
        is_meant = row.vendor in (None, vendor) and row.capability in (None, setting.capability)
        if is_meant and row.covers(version):
            return row.factor, row.most, row.least or row.factor
    return 1.0, 1.0, 1.0


def graph_rate(setting: Setting) -> GraphRate:
    """The driver's rate for each graph and layer: the engine's own rate, else that of its kind of layers."""
    own = own_overheads(setting)
    if own is not None:
        is_sparse = has_indexer(setting.architecture) or setting.architecture.token_choice is not None
        return own.graph_rate_of(is_sparse=is_sparse, is_mixture=setting.architecture.moe is not None)
    if setting.architecture.is_mla:
        kind = "sparse" if has_indexer(setting.architecture) else "latent"
    else:
        kind = "dense" if setting.architecture.moe is None else "experts"
    return next(rate for rate in GRAPHS.load().rates if rate.kind == kind)
