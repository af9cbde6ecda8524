"""`--additional-config`: what a plug-in's release reads of it, and what a plan follows."""

import json
from typing import Any, Final

from msgspec import Struct
from packaging.version import Version

from kvcore.engine.facts import ADDITIONAL, SWITCH
from kvcore.engines.vllm.start import OwnScheduler
from kvcore.flags import check_fields
from kvcore.scenario import Parallel
from kvcore.tables import NEVER, Amount, Record, ReleaseRange, Source

SWITCHES: Final = frozenset(
    {"enable_flashcomm1", "enable_fused_mc2", "enable_shared_expert_dp", "enable_dsa_cp"}
)
PACKED: Final = ("enable_sparse_c8", "enable_sparse_li_c8")
"""Source: vllm_ascend/ascend_config.py (0.18.0, 0.24.0rc1: the first; 0.23.0: the second)."""
FORMER_HEAD: Final = ("lmhead_tp_size", "lmhead_tensor_parallel_size")
"""Source: vllm_ascend/ascend_config.py (0.9.1: the first; 0.10.1rc1, 0.11.0: the second)."""


class ModuleRanks(Struct, frozen=True, kw_only=True):
    """How many data parallel ranks share single modules; 0: none do, each tensor parallel group has its own."""

    head: int = 0
    """The output head."""
    embedding: int = 0
    dense: int = 0
    """The MLP of dense layers."""
    output: int = 0
    """The output projection of attention."""

    @property
    def asked(self) -> tuple[int, ...]:
        """The sizes that are asked for."""
        return tuple(size for size in (self.head, self.embedding, self.dense, self.output) if size)


class Additional(Struct, frozen=True, kw_only=True):
    """The keys of `--additional-config` that a release reads, as far as a plan follows them."""

    enable_flashcomm1: bool | None = None
    """None leaves it to the environment variable."""
    enable_shared_expert_dp: bool = False
    enable_fused_mc2: int | None = None
    enable_dsa_cp: bool = False
    redundant_experts: int = 0
    """Copies of experts that each layer stores in addition, over all ranks."""
    balances: bool = False
    """Experts move between ranks while the engine serves."""
    gates_apart: bool = False
    """The router and the shared experts run on a stream of their own, with a group of their own."""
    overlaps_experts: bool = False
    """Shared experts run on a stream of their own."""
    packs_index_keys: bool = False
    """Keys of a sparse indexer in 8 bits."""
    ranks: ModuleRanks = ModuleRanks()
    scheduler: OwnScheduler | None = None
    xlite: bool = False
    unread: tuple[str, ...] = ()
    """Keys that this release does not look at."""
    unsized: tuple[str, ...] = ()
    """Keys that are on, and move memory by an amount that no source gives a formula for."""
    unsized_gib: float = 0.0
    """By how much the largest of them may."""

    def keeps_shared_experts(self, parallel: Parallel) -> bool:
        """Whether `enable_shared_expert_dp` has each rank store the shared experts whole: with whole experts alone.

        Source: vllm_ascend/ascend_config.py:AscendConfig (0.11.0, 0.13.0, 0.18.0, 0.23.0).
        """
        return parallel.enable_expert_parallel and self.enable_shared_expert_dp


NOTHING: Final = Additional()
"""Said by a scenario without it."""


class ReadKeys(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a plug-in reads these keys of `--additional-config`."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self.names, ADDITIONAL)


class UnsizedKeys(Record, frozen=True, kw_only=True):
    """Keys of `--additional-config`, and by how much one of them may move memory, on either side."""

    source: Source
    names: tuple[str, ...]
    gib: Amount

    def __post_init__(self) -> None:
        check_fields(self.names, ADDITIONAL)


class AdditionalRules(Record, frozen=True, kw_only=True):
    """Which release reads which keys, and what it makes of them."""

    source: Source = ""
    reads: tuple[ReadKeys, ...] = ()
    unsized: tuple[UnsizedKeys, ...] = ()
    """Keys that move memory by an amount that no source gives a formula for."""
    redundant_need_balancing_since: Version = NEVER
    """From then on redundant experts are there only where their load is balanced while it runs."""
    refuses_unread_since: Version = NEVER
    """From then on a key that is not read stops the start."""
    scheduler_switch_since: Version = NEVER
    """Before it the object alone puts the plug-in's scheduler in vLLM's place, from then on its `enabled`."""

    def keys(self, version: Version) -> frozenset[str]:
        """The keys that are read on vLLM `version`."""
        return frozenset(name for row in self.reads if row.covers(version) for name in row.names)


def read_additional(text: str, rules: AdditionalRules, version: Version) -> Additional:
    """The JSON `text` as a release on vLLM `version` reads it."""
    said: dict[str, Any] = json.loads(text)
    known = rules.keys(version)
    read = {name: value for name, value in said.items() if name in known}
    unsized = [
        (name, row.gib) for row in rules.unsized for name in read if name in row.names and is_on(read[name])
    ]
    return Additional(
        **{name: read[name] for name in read.keys() & SWITCHES},
        xlite=read.get("xlite_graph_config", {}).get(SWITCH, False),
        redundant_experts=_redundant(read, version >= rules.redundant_need_balancing_since),
        balances=_balances(read),
        gates_apart=bool(read.get("multistream_overlap_gate", False)),
        overlaps_experts=bool(read.get("multistream_overlap_shared_expert", False)),
        packs_index_keys=any(read.get(name, False) for name in PACKED),
        ranks=_module_ranks(read, read.get("finegrained_tp_config", {})),
        scheduler=_scheduler(read.get("ascend_scheduler_config"), version >= rules.scheduler_switch_since),
        unread=tuple(name for name in said if name not in known),
        unsized=tuple(name for name, _ in unsized),
        unsized_gib=max((gib for _, gib in unsized), default=0.0),
    )


def _module_ranks(read: dict[str, Any], finegrained: dict[str, Any]) -> ModuleRanks:
    former = (read.get(name, 0) for name in FORMER_HEAD)
    return ModuleRanks(
        head=max(0, *former, finegrained.get("lmhead_tensor_parallel_size", 0)),
        embedding=finegrained.get("embedding_tensor_parallel_size", 0),
        dense=finegrained.get("mlp_tensor_parallel_size", 0),
        output=max(
            read.get("oproj_tensor_parallel_size", 0), finegrained.get("oproj_tensor_parallel_size", 0)
        ),
    )


def _redundant(read: dict[str, Any], needs_balancing: bool) -> int:
    """Redundant experts: of the object where it is read, else of the former keys.

    Source: vllm_ascend/ascend_config.py:AscendConfig.refresh_eplb_config (0.13.0), EplbConfig (0.18.0, 0.23.0).
    """
    own = read.get("eplb_config")
    count = read.get("init_redundancy_expert", 0) if own is None else own.get("num_redundant_experts", 0)
    return int(count) if _balances(read) or not needs_balancing else 0


def _balances(read: dict[str, Any]) -> bool:
    """Whether experts move while the engine serves; to record where they are they are watched in the same way.

    Source: vllm_ascend/worker/model_runner_v1.py:NPUModelRunner.__init__ (0.11.0), ascend_config.py:EplbConfig (0.18.0,
    0.23.0).
    """
    said = read.get("eplb_config", read)
    return bool(said.get("dynamic_eplb") or said.get("expert_map_record_path"))


def _scheduler(said: dict[str, Any] | None, has_switch: bool) -> OwnScheduler | None:
    if said is None or (has_switch and not said.get(SWITCH, False)):
        return None
    names = OwnScheduler.__struct_fields__
    return OwnScheduler(**{name: said[name] for name in names if name in said})


def is_on(value: object) -> bool:
    """Whether a value asks for anything: not false, zero, empty, or an object without one that does."""
    if isinstance(value, dict):
        return bool(value.get(SWITCH, True)) and any(map(is_on, value.values()))
    return bool(value) and value != -1
