"""What a pool that grows by whole blocks reserves for a peak."""

from __future__ import annotations

import math
from typing import Final

from msgspec.structs import replace

from kvcore.base.quantity import Quantity
from kvcore.base.units import GIB
from kvcore.engine.memory_rules import PoolBlock, written_gb
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import half_width

SHARE: Final = 1 - math.sqrt(0.2)
"""Of a block: what the pool has left before and after the run is anything below one. Four fifths of the differences of
two such remainders are within this share."""


def reserved_bytes(setting: Setting, peak: Quantity) -> Quantity:
    """`peak` as a pool of blocks reserves it: on average as large, up to a block more or less.

    Source: vllm_mindspore/utils.py:ms_memory_profiling (0.5.0, 0.5.1): reserved memory in place of allocated.
    """
    rule = setting.engine.facts.memory.pool_block
    if rule is None:
        return peak
    reach = max(half_width(peak), SHARE * block_bytes(rule, setting))
    source = "; ".join(filter(None, (peak.source, rule.source)))
    return replace(peak, source=source, interval=(max(0.0, peak.value - reach), peak.value + reach))


def block_bytes(rule: PoolBlock, setting: Setting) -> float:
    """Bytes of a block: what the variable says, else the default."""
    written = written_gb(setting.scenario.env.get(rule.variable, ""))
    return (written or rule.default_gb) * GIB
