"""The parts of one rank's memory: the one table of their names, labels, colours, request fields and log figures.

A part is an attribute of `kvcore.engine.rank_memory.RankMemory`. A new part is a row here and the computation of its
bytes.
Colours are Okabe and Ito's, told apart by pattern as well, on white and on black.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kvcore.base.words import msg

_DARK: Final = "#111111"
_MUTED: Final = "#7D7D7D"
_PALE: Final = "rgba(138,138,138,0.10)"


class Part(Struct, frozen=True, kw_only=True):
    """One part: what it is called, how it is drawn, and by which field a person or a log gives it."""

    name: str
    """The attribute of `RankMemory`."""
    label: str
    noun: str = ""
    """The label inside a sentence."""
    budgeted: str = ""
    """The attribute of `RankMemory` that the engine takes off its budget; "" for a part outside it."""
    color: str
    pattern: str = ""
    """One of Plotly's patterns, "" for plain."""
    text_color: str = _DARK
    look: str = ""
    """Colour and pattern in words."""
    field: str = ""
    """Its key in `measured` of a request, in GiB, and the figure of a start log; "" for a part that nobody gives."""
    replaced: str = ""
    """The attribute of `RankMemory` that `field` replaces, where that is not `name`."""
    given_label: str = ""
    """The label of `field` in tables of measured parts, where that is not `label`."""
    control: str = ""
    """The label of `field` in the sidebar, where that is not `given_label`."""
    bounds: tuple[float, float] = (0.0, 100_000.0)
    """The bounds of `field`, in GiB."""
    is_of_machine: bool = False
    """Whether a change of settings moves a given figure by the difference of the estimates; else by their ratio."""

    @property
    def estimate(self) -> str:
        """The attribute of `RankMemory` that `field` replaces."""
        return self.replaced or self.name


SYSTEM: Final = Part(
    name="system",
    label=msg("System"),
    color="#999999",
    pattern="/",
    look=msg("grey, striped"),
    field="system_gib",
    control=msg("System and other processes"),
    is_of_machine=True,
)
FRAMEWORK: Final = Part(
    name="framework",
    label=msg("Framework"),
    noun=msg("framework"),
    budgeted="framework",
    color="#56B4E9",
    look=msg("sky blue"),
    field="non_torch_gib",
    bounds=(-1000.0, 100_000.0),
    is_of_machine=True,
)
WEIGHTS: Final = Part(
    name="weights",
    label=msg("Weights"),
    noun=msg("weights"),
    budgeted="weights",
    color="#0072B2",
    text_color="#FFFFFF",
    look=msg("blue"),
    field="weights_gib",
)
ACTIVATIONS: Final = Part(
    name="activations",
    label=msg("Activations"),
    noun=msg("activations"),
    budgeted="activations",
    color="#E69F00",
    pattern="x",
    look=msg("orange, crossed"),
    field="peak_activation_gib",
)
CUDA_GRAPHS: Final = Part(
    name="cuda_graphs",
    label=msg("CUDA graphs"),
    noun=msg("CUDA graphs"),
    budgeted="counted_graphs",
    color="#F0E442",
    pattern=".",
    look=msg("yellow, dotted"),
    field="cuda_graph_gib",
    bounds=(-1000.0, 100_000.0),
)
UNACCOUNTED: Final = Part(name="unaccounted", label=msg("Unaccounted for"), color="#CC79A7", pattern="-")
"""Before the KV cache, where its memory is given and the other parts leave more than that."""
OVERESTIMATED: Final = msg("Parts estimated too high")
"""The name of the same difference where they leave less."""
KV_CACHE: Final = Part(
    name="kv_cache",
    label=msg("KV cache"),
    color="#009E73",
    look=msg("green"),
    field="available_kv_gib",
    replaced="available_kv",
    given_label=msg("Available for the KV cache"),
    bounds=(-100_000.0, 100_000.0),
)
AFTER_POOL: Final = Part(
    name="after_pool",
    label=msg("Taken after the KV cache"),
    color=_PALE,
    pattern="\\",
    text_color=_MUTED,
)
"""The beginning of the unused memory."""
UNUSED: Final = Part(name="unused", label=msg("Unused"), color=_PALE, text_color=_MUTED, look=msg("pale"))

PARTS: Final = (SYSTEM, FRAMEWORK, WEIGHTS, ACTIVATIONS, CUDA_GRAPHS, KV_CACHE, UNUSED)
"""In the order in which the bar stacks them; with `UNACCOUNTED` they sum to the memory of the card."""
STACKED: Final = (*PARTS[:-2], UNACCOUNTED, KV_CACHE, AFTER_POOL, UNUSED)
"""The same with the parts that only some plans have."""
SUMMED: Final = tuple(part.name for part in STACKED if part is not AFTER_POOL)
"""Attributes of `RankMemory` that sum to its total."""
BUDGETED: Final = tuple(part for part in PARTS if part.budgeted)
GIVEN: Final = (SYSTEM, WEIGHTS, FRAMEWORK, ACTIVATIONS, CUDA_GRAPHS, KV_CACHE)
"""The parts with a `field`, in the order of a request and of the sidebar."""
MEASURED_FIELDS: Final = tuple(
    part.field for part in (WEIGHTS, ACTIVATIONS, FRAMEWORK, CUDA_GRAPHS, SYSTEM, KV_CACHE)
)
"""The fields in the order in which `fitted` and `carried` of a request list them."""
COMPARED: Final = tuple(part for part in PARTS if part in GIVEN)
"""The same in the order of the bar."""
GIVEN_LABELS: Final = {part.estimate: part.given_label or part.label for part in GIVEN}
"""By the attribute of `RankMemory` that is compared."""
MACHINE_FIELDS: Final = frozenset(part.field for part in GIVEN if part.is_of_machine)
"""Fields of `measured` that a change of settings moves by the difference of the estimates."""
