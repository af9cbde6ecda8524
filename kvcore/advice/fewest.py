"""The fewest GPUs of each card that serve a target: one replica, or several beside each other.

A replica stays inside one machine. Replicas are servers of their own behind a router, so that what they serve adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.sweep import sweep
from kvcore.advice.sweep_cell import Cell
from kvcore.advice.target import served
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import whole_requests
from kvcore.base.units import ceil_div
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.models import ModelEntry
from kvcore.engines.registry import with_accelerator
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, Verdict, plan
from kvcore.scenario import Scenario

SIZES: Final = (1, 2, 4, 8, 16)
MOST_REPLICAS: Final = 4096


class Fitting(Struct, frozen=True, kw_only=True):
    """One card with the fewest of it that serve the target."""

    accelerator: Accelerator
    plan: Plan
    """Of one replica."""
    per_replica: int
    """Requests at once on it."""
    replicas: int

    @property
    def tensor_parallel_size(self) -> int:
        """Of each replica."""
        return self.plan.scenario.parallel.tensor_parallel_size

    @property
    def gpus(self) -> int:
        """Cards of all replicas."""
        return self.replicas * self.plan.scenario.parallel.ranks

    @property
    def serves(self) -> int:
        """Requests at once on all replicas."""
        return self.replicas * self.per_replica

    @property
    def memory_gib(self) -> float:
        """Memory of all cards."""
        return self.gpus * self.accelerator.memory_gib


def fewest_gpus(base: Scenario, cards: Sequence[Accelerator] = ()) -> tuple[Fitting, ...]:
    """The cards that serve what `base` wants (one request, if nothing), the fewest GPUs first, then the least memory.

    The flags of `base` hold on every card; its tensor parallel size and its card do not. Cards on which no replica
    starts are left out. Without a length each request is as long as the model allows. Raises ModelError.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "max_model_len": 16384, "wanted": 40}
        >>> cards = [catalogue.find_accelerator(name) for name in ("H100-80GB", "H200-141GB", "RTX-4090-24GB")]
        >>> for one in fewest_gpus(scenario_from_request(asked), cards):
        ...     print(one.accelerator.id, one.gpus, one.tensor_parallel_size, one.serves >= 40)
        H200-141GB 2 2 True
        H100-80GB 4 4 True
        RTX-4090-24GB 16 8 True
    """
    if base.max_model_len is None or base.max_model_len < 0:
        base = replace(base, max_model_len=read_architecture(base.config).max_model_len)
    chosen = cards or catalogue.load_accelerators()
    known = catalogue.bundled_model(base.model)
    entry = known if known is not None and known.config == base.config else _own_entry(base)
    (swept,) = sweep(base, [entry], chosen, SIZES)
    by_card: dict[str, list[Cell]] = {}
    for cell in swept.cells:
        by_card.setdefault(cell.accelerator, []).append(cell)
    found = (_fewest(base, card, by_card.get(card.id, ())) for card in chosen)
    return tuple(sorted(filter(None, found), key=lambda one: (one.gpus, one.memory_gib, one.accelerator.id)))


def _own_entry(base: Scenario) -> ModelEntry:
    """The model of `base` as a row of the catalogue has it."""
    return ModelEntry(id=base.model, config=base.config, checkpoint=base.checkpoint, source="", checked="")


def _fewest(base: Scenario, card: Accelerator, cells: Iterable[Cell]) -> Fitting | None:
    """The layout of one card: sizes are tried by the GPUs that their figures promise, and planned by themselves."""
    wanted = base.wanted or 1
    best: Fitting | None = None
    for gpus, cell in sorted(_promising(base, card, cells, wanted), key=lambda one: (one[0], one[1].gpus)):
        if best is not None and gpus >= best.gpus:
            break
        found = _planned(base, card, cell.tensor_parallel_size, wanted)
        if found is not None and (best is None or found.gpus < best.gpus):
            best = found
    return best


def _promising(
    base: Scenario, card: Accelerator, cells: Iterable[Cell], wanted: int
) -> Iterator[tuple[int, Cell]]:
    """Cells that start inside one machine, with the fewest GPUs that they can do with."""
    for cell in cells:
        alone = card.interconnect is Interconnect.NONE
        if not cell.starts or cell.gpus > (1 if alone else card.devices_per_node):
            continue
        each = whole_requests(cell.max_concurrency)
        if base.max_num_seqs is not None:
            each = min(each, base.max_num_seqs)
        if each > 0 and wanted <= each * MOST_REPLICAS:
            yield cell.gpus * ceil_div(wanted, each), cell


def _planned(base: Scenario, card: Accelerator, size: int, wanted: int) -> Fitting | None:
    scenario = with_accelerator(replace(base, wanted=wanted), card)
    parallel = replace(scenario.parallel, tensor_parallel_size=size)
    try:
        found = plan(replace(scenario, parallel=parallel))
    except KvPlannerError:
        return None
    target = served(found)
    if found.verdict not in (Verdict.FITS, Verdict.TIGHT) or target is None or not target.total:
        return None
    return Fitting(
        accelerator=card, plan=found, per_replica=target.total, replicas=ceil_div(wanted, target.total)
    )
