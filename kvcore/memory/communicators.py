"""Communicators of HCCL: which groups of ranks exchange something in the profile run, and what their buffers take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kvcore.base.units import GIB, MIB
from kvcore.engine.memory_rules import Communicators, ExchangeRow
from kvcore.engine.protocol import Setting
from kvcore.engines.vllm.additional import additional_of
from kvcore.engines.vllm.flashcomm import cuts_tokens
from kvcore.memory.balancing import balancing_of
from kvcore.memory.weights import expert_ranks

FUSED_VARIABLE: Final = "VLLM_ASCEND_ENABLE_FUSED_MC2"


class Group(NamedTuple):
    """Ranks that exchange something, and the size of one of their two buffers."""

    ranks: int
    buffer_mib: int
    is_shared: bool = True
    """Another group of the same ranks may use the same communicator."""


class Taken(NamedTuple):
    """What the communicators of one rank take, how far off that may be, and how far above it."""

    value: int
    spread: int
    more: int


def communicator_bytes(setting: Setting) -> Taken:
    """What the communicators of one rank take.

    For each group 2 × buffer + what a communicator takes in addition.

    Source: vllm_ascend/utils.py:create_hccl_pg_options (0.11.0, 0.25.1rc1).
    """
    rules = setting.engine.facts.memory.communicators
    if rules is None:
        return Taken(0, 0, 0)
    groups = list(used_groups(setting, rules))
    if rules.shared_since <= setting.resolved.version < rules.shared_below:
        shared = {group for group in groups if group.is_shared}
        groups = [*shared, *(group for group in groups if not group.is_shared)]
    buffers = sum(2 * group.buffer_mib * MIB for group in groups)
    spread = int(len(groups) * rules.spread_gib * GIB)
    one = 2 * rules.default_mib * MIB + int(rules.own_gib * GIB)
    unseen = rules.more_groups if exchange_row(setting) is not None else 0
    return Taken(buffers + int(len(groups) * rules.own_gib * GIB), spread, spread + unseen * one)


def used_groups(setting: Setting, rules: Communicators) -> Iterator[Group]:
    """The groups that a profile run uses, each once.

    Source: vllm_ascend/distributed/parallel_state.py:init_ascend_model_parallel, ascend_forward_context.py:
    select_moe_comm_method, ops/fused_moe/prepare_finalize.py (0.11.0, 0.23.0).
    """
    parallel, asked = setting.parallel, _mib(setting, rules)
    sized = setting.resolved.version >= rules.sized_since
    plain = rules.default_mib if sized else asked
    gathered = rules.gathered_mib if sized else asked
    if parallel.tensor_parallel_size > 1:
        yield Group(parallel.tensor_parallel_size, plain)
    if parallel.pipeline_parallel_size > 1:
        yield Group(parallel.pipeline_parallel_size, plain)
    if setting.architecture.moe is None:
        return
    ranks = expert_ranks(parallel)
    if dispatches_tokens(setting):
        yield Group(ranks, asked, is_shared=False)
    yield from _balancing_groups(setting, asked)
    if gathers_apart(setting):
        yield Group(ranks, plain, is_shared=False)
    if exchanges_tokens(setting):
        if not _fuses_exchange(setting):
            yield Group(ranks, plain)
    elif ranks > 1 and is_sequence_parallel(setting):
        yield Group(ranks, plain)
    elif parallel.data_parallel_size > 1:
        yield Group(parallel.data_parallel_size, gathered)


def _balancing_groups(setting: Setting, asked_mib: int) -> Iterator[Group]:
    """The group that moves experts, where the profile run tries it: of all ranks of the model, or its own.

    Source: vllm_ascend/eplb/eplb_updator.py:EplbUpdator.warm_up_eplb (0.13.0, 0.18.0, 0.23.0).
    """
    rules = balancing_of(setting)
    for row in () if rules is None else rules.group:
        if row.covers(setting.resolved.version):
            mib = asked_mib if row.mib is None else row.mib
            yield Group(expert_ranks(setting.parallel), mib, is_shared=False)


def gathers_apart(setting: Setting) -> bool:
    """Whether `multistream_overlap_gate` gathers the experts' input in a group of its own: with FlashComm, where ranks
    gather all tokens.

    Source: vllm_ascend/ops/fused_moe/prepare_finalize.py:_prepare_with_ep_group, distributed/parallel_state.py:
    init_ascend_model_parallel: fc3_quant_x (0.13.0, 0.18.0, 0.23.0).
    """
    is_asked = additional_of(setting.engine, setting.scenario, setting.resolved.version).gates_apart
    whole = expert_ranks(setting.parallel) > 1
    return is_asked and whole and is_sequence_parallel(setting) and not exchanges_tokens(setting)


def _fuses_exchange(setting: Setting) -> bool:
    """Whether one kernel exchanges tokens and runs the experts; a key of `--additional-config` counts before the
    variable.

    Source: vllm_ascend/ascend_config.py:AscendConfig (0.20.2rc1, 0.23.0: enable_fused_mc2).
    """
    said = additional_of(setting.engine, setting.scenario, setting.resolved.version).enable_fused_mc2
    return setting.scenario.env.get(FUSED_VARIABLE) == "1" if said is None else said == 1


def is_sequence_parallel(setting: Setting) -> bool:
    """Whether tokens are cut over the tensor parallel ranks between the layers (FlashComm)."""
    return cuts_tokens(setting.engine, setting.scenario, setting.resolved.version)


def exchanges_tokens(setting: Setting) -> bool:
    """Whether ranks with whole experts send each other the tokens of a large batch."""
    row = exchange_row(setting)
    return row is not None and row.exchanges


def dispatches_tokens(setting: Setting) -> bool:
    """Whether tokens of small batches go through a group of their own (MC2), which the profile run tries."""
    rules, moe, row = (
        setting.engine.facts.memory.communicators,
        setting.architecture.moe,
        exchange_row(setting),
    )
    if rules is None or moe is None or row is None:
        return False
    ranks = expert_ranks(setting.parallel)
    fits = row.exchanges or moe.num_experts // ranks <= rules.dispatched_experts
    return 0 < row.dispatch_ranks <= ranks and fits


def exchange_row(setting: Setting) -> ExchangeRow | None:
    """How the ranks pass tokens; None without several ranks of whole experts, and for other libraries."""
    rules = setting.engine.facts.memory.communicators
    if rules is None or setting.architecture.moe is None or expert_ranks(setting.parallel) == 1:
        return None
    return next(row for row in rules.cards if row.card in setting.card_label)


def _mib(setting: Setting, rules: Communicators) -> int:
    """What the variable says, up to nine digits; HCCL does not start with any other text."""
    text = setting.scenario.env.get(rules.variable, "")
    is_number = text.isdecimal() and text.isascii() and len(text) < 10
    return int(text) if is_number and int(text) else rules.default_mib
