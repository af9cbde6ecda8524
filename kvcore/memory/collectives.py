"""Buffers by which ranks exchange what they computed, sized as their libraries size them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from kvcore.catalogue.accelerators import Interconnect, Vendor
from kvcore.engine.vllm.classes import CLASSES
from kvcore.engine.vllm.exchange import EXCHANGED_TOKENS, exchange_of
from kvcore.memory.setting import Setting
from kvcore.memory.weights import expert_ranks
from kvcore.scenario import Link
from kvcore.units import MIB, ceil_div, round_up
from kvcore.versioned import Amount, Capability, Count, Published, ReleaseRange, Source

FLAG_BYTES: Final = 256 * 4
"""Of each rank. Source: flashinfer/comm/trtllm_ar.py:BarrierFlagCount (0.6.6)."""
SIGNAL_PAD_BYTES: Final = 2048
"""Source: flashinfer/comm/mnnvl.py:SIGNAL_PAD_SIZE (0.6.6)."""
ONE_SHOT_BYTES: Final = 64 * 1024 * 8 * 2
"""Up to this much goes in one step. Source: flashinfer/comm/trtllm_mnnvl_ar.py:MNNVL_ONE_SHOT_THRESHOLD (0.6.13)."""
LAMPORT_BUFFERS: Final = 3
PAGE_BYTES: Final = 2 * MIB
"""What cuMemGetAllocationGranularity recommends."""


DEEPEP_BUFFER_MB: Final = 1024
"""Source: vllm/envs.py:VLLM_DEEPEP_BUFFER_SIZE_MB (0.11.0, 0.33.0); vllm 0.10.2 says so in all2all.py."""
QUANTIZED_BLOCK: Final = 128
"""Features that share one scale of an exchanged token. Source: DeepEP csrc/config.hpp:LowLatencyLayout."""


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


class AllReduceFusion(Struct, frozen=True, kw_only=True):
    """FlashInfer's workspace of a fused all-reduce and RMSNorm."""

    multicast_page_mib: Amount
    standalone_since: Published
    """From here on FlashInfer reduces where nothing is compiled, too."""
    era: tuple[FusionEra, ...]
    size: tuple[FusionSize, ...]


def fusion_workspace_bytes(tables: AllReduceFusion, setting: Setting, link: str) -> int:
    """The workspace on one rank, 0 where there is none: made while the model compiles, inside the profile run.

    Source: vllm/compilation/passes/fusion/allreduce_rms_fusion.py:AllReduceFusionPass (0.17.1, 0.19.0, 0.33.0),
    vllm/distributed/device_communicators/flashinfer_all_reduce.py (0.19.0, 0.25.1, 0.26.0, 0.33.0).
    """
    version = setting.resolved.version
    era = next((row for row in tables.era if row.covers(version)), None)
    if era is None or link != Link.NVLINK or not is_fused(tables, era, setting):
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
    uncompiled = CLASSES.load().uncompiled.covers(setting.architecture.read_as, resolved.version)
    if resolved.enforce_eager or uncompiled:
        return False
    if scenario.fuse_allreduce_rms is not None:
        return scenario.fuse_allreduce_rms
    is_alone = parallel.data_parallel_size == parallel.pipeline_parallel_size == 1
    return setting.capability in era.capabilities and (is_alone or not era.alone)


def fused_tokens(tables: AllReduceFusion, setting: Setting) -> int:
    """Tokens of the largest step that is reduced so; 0 for cards and numbers of ranks without a size."""
    width = setting.architecture.hidden_size * setting.element_bytes
    fits = [
        (int(row.mib * MIB) // width, row.standalone)
        for row in tables.size
        if row.covers(setting.resolved.version)
        and row.capability == setting.capability
        and row.ranks == setting.parallel.tensor_parallel_size
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
    """DeepEP's buffers by which ranks with whole experts exchange tokens, made when the model has loaded.

    Only data parallel ranks exchange them. High throughput: one buffer within a machine, another between machines.
    Low latency: that one, and two of sent and two of received tokens, for every expert as many as a rank may send.

    Source: vllm/distributed/device_communicators/all2all.py:DeepEPHTAll2AllManager, DeepEPLLAll2AllManager (0.10.2,
    0.19.0, 0.33.0), DeepEP csrc/config.hpp:get_low_latency_rdma_size_hint.
    """
    parallel, moe = setting.parallel, setting.architecture.moe
    if moe is None or not (parallel.enable_expert_parallel and parallel.data_parallel_size > 1):
        return 0
    plain = _variable(setting, "VLLM_DEEPEP_BUFFER_SIZE_MB", DEEPEP_BUFFER_MB) * MIB
    match exchange_of(setting.scenario):
        case "deepep_high_throughput":
            spans_machines = expert_ranks(parallel) > setting.accelerator.devices_per_node
            return plain * (2 if spans_machines else 1)
        case "deepep_low_latency":
            hidden = setting.architecture.hidden_size
            message = 2 * hidden + 4 * ceil_div(hidden, QUANTIZED_BLOCK)
            experts = moe.num_experts + parallel.num_redundant_experts
            return plain + 4 * experts * sent_tokens(setting) * message
    return 0


def sent_tokens(setting: Setting) -> int:
    """Tokens that a rank may send at once.

    Source: vllm/model_executor/layers/fused_moe/layer.py (0.19.0, 0.20.0, 0.29.0).
    """
    if setting.switches.batched_exchange:
        return setting.resolved.max_num_batched_tokens
    return _variable(setting, "VLLM_MOE_DP_CHUNK_SIZE", EXCHANGED_TOKENS)


def _variable(setting: Setting, name: str, default: int) -> int:
    """A variable that is a number of up to nine digits; the engine does not start with any other."""
    text = setting.scenario.env.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else default
