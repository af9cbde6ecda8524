"""Buffers by which ranks exchange what they computed, sized as their libraries size them."""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.numbers import count, gib_text
from kvcore.base.units import GIB, MIB, ceil_div, round_up
from kvcore.catalogue.accelerators import Interconnect, Vendor
from kvcore.engine.protocol import Setting
from kvcore.memory.weights import expert_ranks
from kvcore.scenario import Link
from kvcore.tables import Amount, Capability, Count, Record, ReleaseRange, Source

FLAG_BYTES: Final = 256 * 4
"""For each rank. Source: flashinfer/comm/trtllm_ar.py:BarrierFlagCount (0.6.6)."""
SIGNAL_PAD_BYTES: Final = 2048
"""Source: flashinfer/comm/mnnvl.py:SIGNAL_PAD_SIZE (0.6.6)."""
ONE_SHOT_BYTES: Final = 64 * 1024 * 8 * 2
"""Up to this much goes in one step. Source: flashinfer/comm/trtllm_mnnvl_ar.py:MNNVL_ONE_SHOT_THRESHOLD (0.6.13)."""
LAMPORT_BUFFERS: Final = 3
PAGE_BYTES: Final = 2 * MIB
"""The granularity that cuMemGetAllocationGranularity recommends."""


DEEPEP_BUFFER_MB: Final = 1024
"""Source: vllm/envs.py:VLLM_DEEPEP_BUFFER_SIZE_MB (0.11.0, 0.33.0); vllm 0.10.2 says so in all2all.py."""
QUANTIZED_BLOCK: Final = 128
"""Features that share one scale of an exchanged token. Source: DeepEP csrc/config.hpp:LowLatencyLayout."""
LOW_LATENCY_LIMIT: Final = 16 * (2**31 - 1) - 1
"""Bytes. Source: DeepEP csrc/deep_ep.cpp:Buffer::Buffer, num_rdma_bytes / sizeof(int4) below the largest int (1.2)."""
CHUNK_VARIABLE: Final = "VLLM_MOE_DP_CHUNK_SIZE"
PPLX_UNIT: Final = 16
"""Bytes that a token is padded to. Source: pplx-kernels csrc/all_to_all/internode.cpp, intranode.cpp."""
MORI_HEAP_VARIABLE: Final = "MORI_SHMEM_HEAP_SIZE"
MORI_HEAP_BYTES: Final = 4 * GIB
"""For one process. Source: mori include/mori/shmem/internal.hpp:DEFAULT_STATIC_SYMMETRIC_HEAP_SIZE (1.2.2)."""
MORI_FORMER_HEAP_BYTES: Final = 2 * GIB
"""The same before March 2026. Source: mori commit 5b0ed757; vllm/distributed/device_communicators/all2all.py:
MoriAll2AllManager (0.33.0)."""
_SIZE: Final = re.compile(r"(\d{1,12})\s*(?:([KMG])(?:i?B)?)?", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 1, "K": 1024, "M": MIB, "G": GIB}


class Heap(NamedTuple):
    """Bytes that a library takes when its communicator is made, and how much less that may be."""

    value: int
    less: int


class Backend(StrEnum):
    """FlashInfer's two ways to reduce and normalise in one kernel."""

    TRTLLM = "trtllm"
    MNNVL = "mnnvl"


class FusionEra(ReleaseRange, frozen=True, kw_only=True):
    """How the releases of one era make the workspace."""

    source: Source
    backends: tuple[Backend, ...]
    multicast: bool
    """Its buffers are cut in the pages of multicast memory, which only an NVSwitch has."""
    capabilities: tuple[Capability, ...]
    """Where it is on unless it is switched off."""
    alone: bool
    """Off with data or pipeline parallelism."""


class FusionSize(ReleaseRange, frozen=True, kw_only=True):
    """The largest tensor that is reduced by it."""

    source: Source
    capability: Capability
    ranks: Count
    mib: Amount
    standalone: bool = False
    """All-reduce without the fused kernel: whatever the batch."""


class AllReduceFusion(Record, frozen=True, kw_only=True):
    """FlashInfer's workspace of a fused all-reduce and RMSNorm."""

    multicast_page_mib: Amount
    standalone_since: Version
    """From here on FlashInfer reduces where nothing is compiled, too."""
    era: tuple[FusionEra, ...]
    size: tuple[FusionSize, ...]


def fusion_workspace_bytes(tables: AllReduceFusion, setting: Setting, link: str) -> int:
    """The workspace on one rank, 0 where there is none: made while the model compiles, inside the profile run.

    Source: vllm/compilation/passes/fusion/allreduce_rms_fusion.py:AllReduceFusionPass (0.17.1, 0.19.0, 0.33.0),
    vllm/distributed/device_communicators/flashinfer_all_reduce.py (0.19.0, 0.25.1, 0.26.0, 0.33.0).
    """
    if link != Link.NVLINK:
        return 0
    version = setting.resolved.version
    era = next((row for row in tables.era if row.covers(version)), None)
    if era is None or not is_fused(tables, era, setting):
        return 0
    tokens = fused_tokens(tables, setting)
    has_switch = setting.accelerator.interconnect is Interconnect.NVLINK
    backends = era.backends
    if not has_switch and Backend.MNNVL in backends:
        backends = (Backend.TRTLLM,)
    elif not has_switch and era.multicast:
        return 0
    paged = era.multicast and has_switch
    page = int(tables.multicast_page_mib * MIB) if paged else PAGE_BYTES
    return sum(backend_bytes(backend, setting, tokens, page) for backend in backends) if tokens else 0


def is_fused(tables: AllReduceFusion, era: FusionEra, setting: Setting) -> bool:
    """Whether the ranks reduce by FlashInfer.

    Source: vllm/config/vllm.py:enable_allreduce_rms_fusion (0.16.0 off, 0.17.1, 0.20.0, 0.25.1, 0.33.0),
    vllm/envs.py:VLLM_ALLREDUCE_USE_FLASHINFER (0.28.0 off, 0.29.0 on).
    """
    scenario, parallel, resolved = setting.scenario, setting.parallel, setting.resolved
    if setting.accelerator.vendor is not Vendor.NVIDIA or setting.runner not in ("v1", "v2"):
        return False
    standalone = "1" if resolved.version >= tables.standalone_since else "0"
    if scenario.env.get("VLLM_ALLREDUCE_USE_FLASHINFER", standalone) == "1":
        return True
    if resolved.enforce_eager or not setting.engine.compiles(setting.architecture, resolved.version):
        return False
    if scenario.fuse_allreduce_rms is not None:
        return scenario.fuse_allreduce_rms
    is_alone = parallel.data_parallel_size == parallel.pipeline_parallel_size == 1
    return setting.capability in era.capabilities and (is_alone or not era.alone)


def fused_tokens(tables: AllReduceFusion, setting: Setting) -> int:
    """Tokens of the largest step that is reduced so; 0 for cards and numbers of ranks without a size."""
    width = setting.architecture.hidden_size * setting.element_bytes
    capability, ranks = setting.capability, setting.parallel.tensor_parallel_size
    fits = [
        (int(row.mib * MIB) // width, row.standalone)
        for row in tables.size
        if row.capability == capability and row.ranks == ranks and row.covers(setting.resolved.version)
    ]
    batch = setting.resolved.max_num_batched_tokens
    return max((tokens if standalone else min(tokens, batch) for tokens, standalone in fits), default=0)


def backend_bytes(backend: Backend, setting: Setting, tokens: int, page: int) -> int:
    """The buffers of one backend for `tokens`, in pages of `page` bytes.

    Source: flashinfer/comm/trtllm_ar.py:trtllm_create_ipc_workspace_for_all_reduce_fusion, mnnvl.py:SymmDeviceMemory
    (0.6.6, 0.6.16), trtllm_mnnvl_ar.py:MNNVLAllReduceFusionWorkspace (0.6.13, 0.7.2).
    """
    ranks, width = (
        setting.parallel.tensor_parallel_size,
        setting.architecture.hidden_size * setting.element_bytes,
    )
    if backend is Backend.MNNVL:
        one_shot = min(ONE_SHOT_BYTES // (ranks * width), tokens) * ranks * width
        two_shot = 2 * ceil_div(tokens, ranks) * ranks * width
        parts = [LAMPORT_BUFFERS * max(one_shot, two_shot)]
    else:
        sent = ranks * tokens * width
        parts = [round_up(part, PAGE_BYTES) for part in (sent, ranks * FLAG_BYTES, LAMPORT_BUFFERS * sent)]
    return sum(round_up(part + SIGNAL_PAD_BYTES, page) for part in parts)


def exchange_bytes(setting: Setting) -> int:
    """Buffers by which ranks with whole experts exchange tokens, made when the model has loaded: DeepEP's and pplx's.

    Only data parallel ranks exchange them. High throughput: one buffer within a machine, another between machines.
    Low latency: that one, and `low_latency_bytes`.

    Raises EngineRefusalError as `low_latency_bytes`.

    Source: vllm/distributed/device_communicators/all2all.py:DeepEPHTAll2AllManager, DeepEPLLAll2AllManager (0.10.2,
    0.19.0, 0.33.0).
    """
    parallel, moe = setting.parallel, setting.architecture.moe
    if moe is None or not exchanges_tokens(setting):
        return 0
    plain = _variable(setting, "VLLM_DEEPEP_BUFFER_SIZE_MB", DEEPEP_BUFFER_MB) * MIB
    match setting.engine.exchange(setting.scenario):
        case "deepep_high_throughput":
            spans_machines = expert_ranks(parallel) > setting.accelerator.devices_per_node
            return plain * (2 if spans_machines else 1)
        case "deepep_low_latency":
            return plain + low_latency_bytes(setting, moe.num_experts)
        case "pplx" if setting.switches.pplx_exchange:
            return pplx_bytes(setting, moe.num_experts)
    return 0


def low_latency_bytes(setting: Setting, experts: int) -> int:
    """DeepEP's buffers of low latency: two of sent and two of received tokens, for every expert, redundant ones too, as
    many as a rank may send.

    Raises EngineRefusalError `exchange-buffer-too-large`: the library counts 16 bytes at a time in 32 bits.

    Source: DeepEP csrc/config.hpp:get_low_latency_rdma_size_hint, csrc/deep_ep.cpp:Buffer::Buffer (1.2);
    github.com/vllm-project/vllm/issues/57894: 2,048 tokens of 5,120 for 448 experts take 35.55 GiB, 1,840 do 31.94.
    """
    hidden, tokens = setting.architecture.hidden_size, sent_tokens(setting)
    message = 2 * hidden + 4 * ceil_div(hidden, QUANTIZED_BLOCK)
    bytes_per_token = 4 * (experts + setting.parallel.num_redundant_experts) * message
    most = LOW_LATENCY_LIMIT // bytes_per_token
    if tokens > most:
        is_batch = setting.switches.batched_exchange
        raise EngineRefusalError(
            "exchange-buffer-too-large",
            field="max_num_batched_tokens" if is_batch else f"env.{CHUNK_VARIABLE}",
            value=tokens,
            size=gib_text(bytes_per_token * tokens),
            most=count(most),
        )
    return bytes_per_token * tokens


def exchanges_tokens(setting: Setting) -> bool:
    """Whether data parallel ranks have whole experts, so that tokens go where their experts are."""
    parallel = setting.parallel
    has_ranks = parallel.enable_expert_parallel and parallel.data_parallel_size > 1
    return setting.architecture.moe is not None and has_ranks


def pplx_bytes(setting: Setting, experts: int) -> int:
    """pplx's buffers on one rank, for `tokens` that each rank may send: tokens that come back are in float32.

    In a machine one for every rank, with as many rows as its experts may get. Between machines four: sent, received,
    answered and collected, of which only the received and answered ones are divided over the ranks of tensor
    parallelism. Six, or five, 32-bit numbers follow each row.

    Source: pplx-kernels csrc/all_to_all/intranode.cpp:AllToAllIntraNode, internode.cpp:AllToAllInterNode;
    vllm/model_executor/layers/fused_moe/pplx_prepare_finalize.py:pplx_hidden_dim_scale_bytes (0.11.0, 0.16.0).
    """
    parallel, hidden = setting.parallel, setting.architecture.hidden_size
    ranks, tokens = expert_ranks(parallel), sent_tokens(setting)
    own = ceil_div(experts, ranks)
    answer = hidden * 4
    if ranks <= setting.accelerator.devices_per_node:
        buffer = PPLX_UNIT + round_up(own * 4, PPLX_UNIT) + tokens * own * answer
        return ranks * buffer + 6 * 4 * own * tokens * ranks
    is_quantized = "fp8" in setting.storage
    scales = round_up(4 * ceil_div(hidden, QUANTIZED_BLOCK), PPLX_UNIT) if is_quantized else 0
    message = round_up(hidden * (1 if is_quantized else setting.element_bytes), PPLX_UNIT) + scales
    message = round_up(message + 4, PPLX_UNIT)
    rows = own * ceil_div(ranks, parallel.tensor_parallel_size) * tokens
    return tokens * message + rows * (message + answer + 5 * 4) + tokens * experts * answer


def heap_of(setting: Setting) -> Heap:
    """MoRI's symmetric heap, made with the communicator of the experts; of what it exchanges nothing is outside.

    Source: mori src/shmem/init.cpp:InitializeStaticHeap (1.2.2); vllm/distributed/device_communicators/all2all.py:
    MoriAll2AllManager (0.16.0, 0.33.0).
    """
    if not exchanges_tokens(setting) or not (setting.engine.exchange(setting.scenario) or "").startswith(
        "mori"
    ):
        return Heap(0, 0)
    asked = _SIZE.fullmatch(setting.scenario.env.get(MORI_HEAP_VARIABLE, "").strip())
    if asked is None:
        return Heap(MORI_HEAP_BYTES, MORI_HEAP_BYTES - MORI_FORMER_HEAP_BYTES)
    return Heap(int(asked[1]) * _UNITS[(asked[2] or "").upper()], 0)


def sent_tokens(setting: Setting) -> int:
    """Tokens that a rank may send at once.

    Source: vllm/model_executor/layers/fused_moe/layer.py (0.19.0, 0.20.0, 0.29.0).
    """
    if setting.switches.batched_exchange:
        return setting.resolved.max_num_batched_tokens
    return _variable(setting, CHUNK_VARIABLE, setting.engine.exchanged_tokens)


def _variable(setting: Setting, name: str, default: int) -> int:
    """A variable that is a number of up to nine digits; the engine does not start with any other."""
    text = setting.scenario.env.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else default
