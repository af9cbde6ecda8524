"""How the kernel that runs MXFP4 experts stores them on this card: `expert_kernels.toml`."""

from functools import lru_cache
from typing import Annotated, Final, Literal

from msgspec import Meta
from packaging.version import Version

from kvcore.base.units import round_up
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.cards import CardView
from kvcore.engine.protocol import Resolved
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.memory.weights import Rank, counted_layers
from kvcore.model.architecture import Architecture, Experts
from kvcore.model.quantization import Quantization
from kvcore.model.quantization.formats import ExpertsShape
from kvcore.scenario import Scenario
from kvcore.tables import CapabilityNumber, ReleaseRange, Reviewed, Source, TableFile

MODEL_TYPE: Final = "gpt_oss"
METHOD: Final = "mxfp4"
GROUP_SIZE: Final = 32
"""Weights that share one byte of scale. Source: OCP Microscaling Formats (MX) 1.0."""
Side = Annotated[int, Meta(ge=1, le=1024)]


class ExpertKernel(ReleaseRange, frozen=True, kw_only=True):
    """How one kernel keeps the experts."""

    source: Source
    kernel: Literal["TRITON", "FLASHINFER_TRTLLM", "ROCM", "XPU"]
    vendor: Vendor
    capability: tuple[CapabilityNumber, CapabilityNumber]
    hidden_multiple: Side
    intermediate_multiple: Side
    value_tile: tuple[Side, Side]
    """Rows, and bytes a row, that packed values are padded to."""
    scale_tile: tuple[Side, Side]
    keeps_scales: bool
    """Whether the checkpoint's scales stay with the rearranged ones."""
    bias_bytes: Annotated[int, Meta(ge=0, le=8)]

    def experts_bytes(self, shape: ExpertsShape) -> int:
        """Bytes of the experts of one layer on one rank, as the kernel keeps them.

        Example:
            >>> shape = ExpertsShape(
            ...     num_experts=32, hidden_size=2880, intermediate_size=2880, element_bytes=2, bias=True)
            >>> hopper = expert_kernel(Version("0.19.0"), "nvidia", 90)
            >>> hopper.experts_bytes(shape) == 32 * (
            ...     (5760 + 2880) * 1472 + (5888 + 3072) * 90 + (5760 + 2880) * 90 + 4 * (5760 + 2880))
            True
        """
        hidden = round_up(shape.hidden_size, self.hidden_multiple)
        intermediate = round_up(shape.intermediate_size, self.intermediate_multiple)
        up_rows = shape.shards * intermediate
        values = tiled(up_rows, hidden // 2, self.value_tile) + tiled(
            hidden, intermediate // 2, self.value_tile
        )
        up_groups, down_groups = hidden // GROUP_SIZE, intermediate // GROUP_SIZE
        scales = tiled(up_rows, up_groups, self.scale_tile) + tiled(hidden, down_groups, self.scale_tile)
        if self.keeps_scales:
            scales += up_rows * up_groups + hidden * down_groups
        bias = self.bias_bytes * (up_rows + hidden) if shape.bias else 0
        return shape.num_experts * (values + scales + bias)


class ExpertKernels(Reviewed, frozen=True, kw_only=True):
    """expert_kernels.toml."""

    kernels: tuple[ExpertKernel, ...]
    """In the order in which they are searched."""


EXPERT_KERNELS: Final = TableFile("kvcore.memory", "expert_kernels.toml", ExpertKernels)


def tiled(rows: int, columns: int, tile: tuple[int, int]) -> int:
    """Bytes of a matrix of bytes whose sides are padded to `tile`.

    Example:
        >>> tiled(2880, 736, (64, 64))
        2211840
    """
    return round_up(rows, tile[0]) * round_up(columns, tile[1])


@lru_cache(maxsize=1024)
def expert_kernel(version: Version, vendor: str, capability: int) -> ExpertKernel | None:
    """The kernel of `version` on a card; None where the experts stay as they are counted."""
    for row in EXPERT_KERNELS.load().kernels:
        low, high = row.capability
        if row.vendor == vendor and low <= capability <= high and row.covers(version):
            return row
    return None


def kernel_source(version: Version, vendor: str, capability: int) -> str:
    """Where the row of the card's kernel comes from; "" without a row."""
    found = expert_kernel(version, vendor, capability)
    return "" if found is None else found.source


def expert_kernel_bytes(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    resolved: Resolved,
    card: CardView,
    stage: int,
) -> int:
    """Bytes that the card's kernel adds to gpt-oss's experts on a rank of `stage` (negative: saves).

    The experts as the kernel keeps them less the experts as `weight_bytes` counts them; 0 with LoRA, which takes
    the Marlin kernel.

    Source: the row's own; vllm/.../fused_moe/oracle/mxfp4.py:select_mxfp4_moe_backend (0.19.0).
    """
    if architecture.model_type != MODEL_TYPE or quantization.method != METHOD or scenario.enable_lora:
        return 0
    kernel = expert_kernel(resolved.version, card.vendor.value, card.number)
    if kernel is None:
        return 0
    parallel = scenario.parallel
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[resolved.dtype])
    added = 0
    for layer, prefix, count in counted_layers(architecture, quantization, parallel, stage):
        for experts in layer.modules:
            if isinstance(experts, Experts):
                shape = rank.experts_shape(experts)
                counted = sum(rank.experts_tensors(experts, prefix + experts.name))
                added += count * (kernel.experts_bytes(shape) - counted)
    return added
