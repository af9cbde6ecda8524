"""The checkpoint's own size and what is counted from its config."""

from __future__ import annotations

from typing import Final

from kvcore.engine.resolved import Resolved
from kvcore.errors import Notice
from kvcore.memory.loaded import head_bytes
from kvcore.memory.weights import weight_bytes
from kvcore.model.architecture import Architecture
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel, Runner, Scenario
from kvcore.units import gib

NOTABLE_DIFFERENCE: Final = 0.05
"""Draft layers that are not loaded, or a tied embedding that is stored twice, stay below it in most checkpoints."""


def uncounted_bytes(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> int:
    """Bytes of the checkpoint that the reader of this family names but does not count; 0 when it counts all.

    The checkpoint's size less what is counted on one rank. Every rank is charged with all of it, because how the
    engine cuts an uncounted part is not known. 0 as well when the size is not known: then only a warning is left.
    """
    stored = scenario.checkpoint.total_size
    if not architecture.uncounted or stored is None:
        return 0
    return max(0, stored - weight_bytes(architecture, quantization, Parallel(), resolved, 0).parameters)


def checkpoint_notices(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> tuple[Notice, ...]:
    """`part-not-counted` or `part-from-checkpoint` for what a reader leaves out; `checkpoint-size-differs` where the
    stored size and the counted one are more than 5 % apart and no flag explains it. Checkpoints of pooling models come
    with or without the head that the engine drops."""
    stored = scenario.checkpoint.total_size
    if architecture.uncounted:
        missing = uncounted_bytes(scenario, architecture, quantization, resolved)
        code = "part-not-counted" if stored is None else "part-from-checkpoint"
        params = {"parts": ", ".join(architecture.uncounted), "size": f"{gib(missing):.2f}"}
        return (Notice(code=code, field="config", params=params),)
    if stored is None or scenario.quantization or scenario.dtype != "auto":
        return ()
    counted = weight_bytes(architecture, quantization, Parallel(), resolved, 0).parameters
    if resolved.runner is Runner.POOLING:
        head = head_bytes(architecture, quantization, Parallel(), resolved, 0)
        counted = min(counted, counted - head, key=lambda size: abs(size - stored))
    if abs(counted / stored - 1) <= NOTABLE_DIFFERENCE:
        return ()
    params = {"counted": f"{gib(counted):.2f}", "stored": f"{gib(stored):.2f}"}
    return (Notice(code="checkpoint-size-differs", field="checkpoint.total_size", params=params),)
