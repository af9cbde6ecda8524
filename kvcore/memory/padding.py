"""Sizes to which kernels pad quantized weights when they are loaded: padding.toml."""

from typing import Annotated, Final, Literal

from msgspec import Meta
from msgspec.structs import replace

from kvcore.base.kept import kept
from kvcore.base.units import round_up
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.cards import CardView
from kvcore.engine.protocol import Resolved
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.memory.weights import Rank, counted_layers
from kvcore.model.architecture import Architecture, Experts, Linear, Module
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.scenario import Parallel, Scenario
from kvcore.tables import CapabilityNumber, ReleaseRange, Reviewed, Source, TableFile

Side = Annotated[int, Meta(ge=0, le=4096)]


class Padding(ReleaseRange, frozen=True, kw_only=True):
    """The padding of one kernel."""

    source: Source
    vendor: Vendor
    capability: tuple[CapabilityNumber, CapabilityNumber]
    formats: frozenset[Literal["BlockScaled", "ChannelScaled", "Nvfp4", "TensorScaled"]]
    gated: bool | None = None
    expert_multiple: Side = 1
    tiles: tuple[tuple[Side, Side], ...] = ()
    pitch_every: Side = 0
    pitch_bytes: Side = 0
    variable: Literal["", "VLLM_ROCM_FP8_PADDING"] = ""
    """An environment variable that turns it off with 0."""

    def linear_bytes(self, rows: int, inputs: int) -> int:
        """Bytes added to a matrix of bytes.

        Example:
            >>> marlin, rocm = PADDING.load().padding[-2:]
            >>> marlin.linear_bytes(2816, 1056) == 2816 * (1088 - 1056)
            True
            >>> rocm.linear_bytes(34816, 5120), rocm.linear_bytes(34816, 4096 + 128)
            (8912896, 0)
        """
        if self.pitch_every:
            return 0 if inputs % self.pitch_every else rows * self.pitch_bytes
        if not self.tiles:
            return 0
        return min(round_up(rows, n) * round_up(inputs, k) for n, k in self.tiles) - rows * inputs


class PaddingTables(Reviewed, frozen=True, kw_only=True):
    """padding.toml."""

    padding: tuple[Padding, ...]


PADDING: Final = TableFile("kvcore.memory", "padding.toml", PaddingTables)


def padding_bytes(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    resolved: Resolved,
    card: CardView,
    stage: int,
) -> int:
    """Bytes that the card's kernels add to the weights of a rank of `stage` beyond the declared parameters."""
    if quantization.method == NOT_QUANTIZED:
        return 0
    rows = tuple(
        row
        for row in PADDING.load().padding
        if row.vendor == card.vendor
        and row.capability[0] <= card.number <= row.capability[1]
        and row.covers(resolved.version)
        and (not row.variable or resolved.engine.reads_variable(row.variable))
        and scenario.env.get(row.variable) != "0"
    )
    if not rows:
        return 0
    return _added_bytes(
        architecture, quantization, scenario.parallel, DTYPE_BYTES[resolved.dtype], stage, rows
    )


@kept
def _added_bytes(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    dtype_bytes: int,
    stage: int,
    rows: tuple[Padding, ...],
) -> int:
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=dtype_bytes)
    return sum(
        count * _added(row, rank, module, prefix + module.name)
        for layer, prefix, count in counted_layers(architecture, quantization, parallel, stage)
        for module in layer.modules
        for row in rows
    )


def _added(row: Padding, rank: Rank, module: Module, name: str) -> int:
    if not isinstance(module, Linear | Experts):
        return 0
    stored = rank.quantization.format_for(module, name)
    if type(stored).__name__ not in row.formats:
        return 0
    if isinstance(module, Linear):
        inputs, outputs = rank.linear_share(module)
        return row.linear_bytes(sum(outputs), inputs)
    if row.gated not in (None, module.gated):
        return 0
    shape = rank.experts_shape(module)
    padded = round_up(shape.intermediate_size, row.expert_multiple)
    return stored.experts_bytes(replace(shape, intermediate_size=padded)) - stored.experts_bytes(shape)
