"""plan(scenario) -> Plan: the one fold over model, engine, memory and cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcore.cache.capacity import CachePlan
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.resolved import Resolved
from kvcore.errors import Notice
from kvcore.memory.budget import RankMemory
from kvcore.model.architecture import Architecture
from kvcore.scenario import Scenario


class Verdict(StrEnum):
    """What the start would come to, first that applies."""

    WEIGHTS_DO_NOT_FIT = "weights-do-not-fit"
    NO_KV_MEMORY = "no-kv-memory"
    CONTEXT_TOO_LONG = "context-too-long"
    TIGHT = "tight"
    FITS = "fits"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything a person sees is a view of this.

    `memory` is None when the card is not known; `cache` is None when there is no memory to plan it in.
    """

    scenario: Scenario
    accelerator: Accelerator
    architecture: Architecture
    resolved: Resolved
    verdict: Verdict
    memory: RankMemory | None
    cache: CachePlan | None
    parameter_bytes_per_rank: int
    notices: tuple[Notice, ...]
