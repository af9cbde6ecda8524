"""Communicators of HCCL: which groups of ranks exchange something in the profile run, and what their buffers take."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct
from packaging.version import Version

from kvcore.base.units import GIB, MIB
from kvcore.engine.overheads import Text, Variable
from kvcore.engine.protocol import Setting
from kvcore.engine.records import Taken
from kvcore.engines.vllm.versions import vllm_release
from kvcore.engines.vllm_ascend.additional import Additional
from kvcore.memory.weights import Rank, expert_ranks
from kvcore.model.architecture import Experts
from kvcore.tables import NEVER, Amount, Count, Record, Source

FUSED_VARIABLE: Final = "VLLM_ASCEND_ENABLE_FUSED_MC2"
BALANCING_IN_PROFILE: Final = "0.14.0"
"""From this vLLM on, the buffers of experts that move are there before the profile run, else after the KV cache.

Source: vllm_ascend/worker/model_runner_v1.py:NPUModelRunner.profile_run (0.13.0: after it; 0.14.0rc1, 0.18.0,
0.25.1rc1: before it), worker/worker_v1.py:NPUWorker.compile_or_warm_up_model (0.9.1, 0.11.0, 0.12.0rc1).
"""
BALANCING_GROUPS: Final = (("0.18.0", 100), ("0.15.0", 1), ("0.13.0", None))
"""MiB of a buffer of the group that moves experts, by the vLLM from which on; None: as the variable says.

Source: vllm_ascend/eplb/eplb_updator.py:EplbUpdator.warm_up_eplb (0.13.0, 0.14.0rc1: the group of all ranks),
distributed/parallel_state.py:init_ascend_model_parallel (0.15.0rc1), utils.py:_DYNAMIC_EPLB_BUFFER_SIZE (0.15.0rc1,
0.17.0rc1: 1; 0.18.0, 0.23.0, 0.25.1rc1: 100).
"""


class ExchangeRow(Record, frozen=True, kw_only=True):
    """How cards pass each other the tokens of experts that are whole on one rank."""

    card: Text = ""
    """A part of their names; "" for any."""
    exchanges: bool
    """Whether ranks send each other the tokens of a large batch that their experts need; else each gathers all
    tokens."""
    dispatch_ranks: Count
    """From so many ranks on, small batches go through a group of their own; 0: never."""


class Communicators(Record, frozen=True, kw_only=True):
    """Buffers of a collective library of which each communicator has its own pair, allotted when it is first used."""

    source: Source
    variable: Variable
    """Says the size of one buffer, in MiB."""
    default_mib: Count
    gathered_mib: Count
    """Buffer of the group of data parallel ranks."""
    sized_since: Version = NEVER
    """From this vLLM on, the variable is for the group that dispatches tokens to experts alone."""
    shared_since: Version = NEVER
    shared_below: Version = NEVER
    """Between these, groups of the same ranks share a communicator, the dispatching one apart."""
    own_gib: Amount
    """Memory of a communicator in addition to its buffers."""
    spread_gib: Amount
    more_groups: Count
    """How many groups of the default size there may be in addition where experts are whole on one rank."""
    dispatched_experts: Count
    """The most experts of a rank that tokens are dispatched to where the number of ranks decides."""
    cards: tuple[ExchangeRow, ...]
    """The first that matches a card."""


class NpuRank(Struct, frozen=True, kw_only=True, dict=True):
    """One rank on NPUs: its setting, and what decides which groups of ranks it talks to."""

    setting: Setting
    rules: Communicators
    additional: Additional
    cuts_tokens: bool
    """Tokens are cut over the tensor parallel ranks between the layers (FlashComm)."""
    moves_experts: bool = False
    """The engine knows buffers for experts that move."""

    @cached_property
    def expert_ranks(self) -> int:
        """Ranks that share the experts."""
        return expert_ranks(self.setting.parallel)

    @cached_property
    def row(self) -> ExchangeRow | None:
        """How the ranks pass tokens; None without several ranks of whole experts."""
        if self.setting.architecture.moe is None or self.expert_ranks == 1:
            return None
        return next(row for row in self.rules.cards if row.card in self.setting.card_label)

    @property
    def exchanges_tokens(self) -> bool:
        """Whether ranks with whole experts send each other the tokens of a large batch."""
        return self.row is not None and self.row.exchanges

    @property
    def dispatches_tokens(self) -> bool:
        """Whether tokens of small batches go through a group of their own (MC2), which the profile run tries."""
        moe, row = self.setting.architecture.moe, self.row
        if moe is None or row is None:
            return False
        fits = row.exchanges or moe.num_experts // self.expert_ranks <= self.rules.dispatched_experts
        return 0 < row.dispatch_ranks <= self.expert_ranks and fits

    @property
    def gathers_apart(self) -> bool:
        """Whether `multistream_overlap_gate` gathers the experts' input in a group of its own: with FlashComm, where
        ranks gather all tokens.

        Source: vllm_ascend/ops/fused_moe/prepare_finalize.py:_prepare_with_ep_group, distributed/parallel_state.py:
        init_ascend_model_parallel: fc3_quant_x (0.13.0, 0.18.0, 0.23.0).
        """
        is_apart = self.additional.gates_apart and self.expert_ranks > 1
        return is_apart and self.cuts_tokens and not self.exchanges_tokens

    @property
    def fuses_exchange(self) -> bool:
        """Whether one kernel exchanges tokens and runs the experts; a key of `--additional-config` counts before the
        variable.

        Source: vllm_ascend/ascend_config.py:AscendConfig (0.20.2rc1, 0.23.0: enable_fused_mc2).
        """
        said = self.additional.enable_fused_mc2
        return self.setting.scenario.env.get(FUSED_VARIABLE) == "1" if said is None else said == 1

    @property
    def balances(self) -> bool:
        """Whether experts of this model move between ranks while the engine serves."""
        is_mixture = self.setting.architecture.moe is not None and self.expert_ranks > 1
        return is_mixture and self.moves_experts and self.additional.balances

    @property
    def asked_mib(self) -> int:
        """The number in the variable, up to nine digits; HCCL does not start with any other text."""
        text = self.setting.scenario.env.get(self.rules.variable, "")
        is_number = text.isdecimal() and text.isascii() and len(text) < 10
        return int(text) if is_number and int(text) else self.rules.default_mib


class Group(NamedTuple):
    """Ranks that exchange something, and the size of one of their two buffers."""

    ranks: int
    buffer_mib: int
    is_shared: bool = True
    """Another group of the same ranks may use the same communicator."""


def communicator_bytes(rank: NpuRank) -> Taken:
    """The communicators of one rank: for each group 2 × buffer + what a communicator takes in addition.

    Source: vllm_ascend/utils.py:create_hccl_pg_options (0.11.0, 0.25.1rc1).
    """
    rules, groups = rank.rules, list(used_groups(rank))
    if rules.shared_since <= rank.setting.resolved.version < rules.shared_below:
        shared = {group for group in groups if group.is_shared}
        groups = [*shared, *(group for group in groups if not group.is_shared)]
    buffers = sum(2 * group.buffer_mib * MIB for group in groups)
    spread = int(len(groups) * rules.spread_gib * GIB)
    one = 2 * rules.default_mib * MIB + int(rules.own_gib * GIB)
    unseen = rules.more_groups if rank.row is not None else 0
    return Taken(buffers + int(len(groups) * rules.own_gib * GIB), spread, spread + unseen * one)


def used_groups(rank: NpuRank) -> Iterator[Group]:
    """The groups that a profile run uses, each once.

    Source: vllm_ascend/distributed/parallel_state.py:init_ascend_model_parallel, ascend_forward_context.py:
    select_moe_comm_method, ops/fused_moe/prepare_finalize.py (0.11.0, 0.23.0).
    """
    setting, rules, asked = rank.setting, rank.rules, rank.asked_mib
    parallel, ranks = setting.parallel, rank.expert_ranks
    sized = setting.resolved.version >= rules.sized_since
    plain = rules.default_mib if sized else asked
    gathered = rules.gathered_mib if sized else asked
    if parallel.tensor_parallel_size > 1:
        yield Group(parallel.tensor_parallel_size, plain)
    if parallel.pipeline_parallel_size > 1:
        yield Group(parallel.pipeline_parallel_size, plain)
    if setting.architecture.moe is None:
        return
    if rank.dispatches_tokens:
        yield Group(ranks, asked, is_shared=False)
    if rank.balances:
        yield from _balancing_group(rank)
    if rank.gathers_apart:
        yield Group(ranks, plain, is_shared=False)
    if rank.exchanges_tokens:
        if not rank.fuses_exchange:
            yield Group(ranks, plain)
    elif ranks > 1 and rank.cuts_tokens:
        yield Group(ranks, plain)
    elif parallel.data_parallel_size > 1:
        yield Group(parallel.data_parallel_size, gathered)


def _balancing_group(rank: NpuRank) -> Iterator[Group]:
    """The group that moves experts, in releases whose profile run tries it. Source: `BALANCING_GROUPS`."""
    for since, mib in BALANCING_GROUPS:
        if rank.setting.resolved.version >= vllm_release(since):
            yield Group(rank.expert_ranks, rank.asked_mib if mib is None else mib, is_shared=False)
            return


def moved_expert_bytes(rank: NpuRank) -> int:
    """Buffers that experts pass through while they move: one expert for each that a rank has of a layer, the weights
    and scales of its first mixture; 0 where experts stay.

    What else a layer keeps for it, two maps of a number for each expert and the load of each, is below a MiB in all.

    Source: vllm_ascend/eplb/adaptor/vllm_adaptor.py:VllmEplbAdaptor.init_buffer_tensor (0.9.1, 0.11.0, 0.13.0, 0.18.0,
    0.23.0, 0.25.1rc1).
    """
    if not rank.balances:
        return 0
    setting = rank.setting
    weights = Rank(
        quantization=setting.engine.storage(setting.scenario),
        parallel=setting.parallel,
        dtype_bytes=setting.element_bytes,
    )
    prefix = setting.architecture.layer_prefix
    mixtures = (
        weights.experts_tensors(module, f"{prefix}.{index}.{module.name}")
        for index, layer in enumerate(setting.architecture.layers)
        for module in layer.modules
        if isinstance(module, Experts)
    )
    return sum(next(mixtures, ()))
