"""What `resolve` may read of a card, and what it gives: every flag filled in, for one version on that card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import Notice
from kvcore.base.kept import kept
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.scenario import CudagraphMode, Runner, Scenario


class Resolved(Struct, frozen=True, kw_only=True):
    """The flags as the engine would print them, and the internal switches that follow from them."""

    engine: str
    engine_version: str
    """The known version whose behaviour is used."""
    version: Version
    is_v0: bool
    dtype: str
    """bfloat16, float16 or float32."""
    kv_cache_dtype: str
    """A concrete storage dtype: bfloat16, fp8_e4m3, fp8_ds_mla, int8_per_token_head, ..."""
    max_model_len: int
    derived_max_model_len: int
    max_model_len_auto: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float
    enforce_eager: bool
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    max_concurrent_batches: int
    use_v2_model_runner: bool
    hybrid_kv_cache_manager: bool
    mamba_cache_mode: str
    """none, align or all."""
    attention_backend: str
    """The engine's spelling, FLASH_ATTN, FLASHINFER, TRITON_ATTN, FLASHMLA, ..."""
    cudagraph_capture_sizes: tuple[int, ...] = ()
    cudagraph_modes: tuple[str, ...] = ()
    """Which graph sets are captured: PIECEWISE, FULL."""
    captures_mixed_full: bool = False
    """Full graphs are of every size; else of batches that only decode."""
    mamba_block_size: int | None = None
    """As asked."""
    mamba_cache_dtype: str = ""
    """Of what recurrent layers keep where the model's config names no dtype; "" for `dtype`."""
    on_310p: bool = False
    """On an Ascend 310P, whose worker lays out hybrid models as vLLM does."""
    counts_in_flight: bool = False
    """Windows keep every batch in flight, whatever the vLLM release does."""
    state_export_tokens: int = 0
    """Gated delta nets export states inside a prefill, so many tokens apart, and keep one more a request; 0: none."""
    mamba_ssm_cache_dtype: str = ""
    """Of the states themselves, before the model's config; "" where no flag says."""
    runner: Runner = Runner.GENERATE
    """generate or pooling."""
    num_speculative_tokens: int = 0
    speculative_method: str = ""
    """ngram, eagle, eagle3, mtp, draft_model, ...; "" without speculative decoding."""
    num_gpu_blocks_override: int | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def max_cudagraph_capture_size(self) -> int:
        """The largest batch that is captured, in tokens; 0 without graphs."""
        return max(self.cudagraph_capture_sizes, default=0)

    @property
    def cudagraph_mode(self) -> CudagraphMode:
        """What is captured, in the engine's word."""
        return graph_mode(self.cudagraph_modes, self.captures_mixed_full)


def graph_mode(modes: tuple[str, ...], mixed_full: bool) -> CudagraphMode:
    """The engine's word for captured sets of graphs; `mixed_full`: full graphs are of mixed batches too.

    Example:
        >>> graph_mode(("PIECEWISE", "FULL"), False).value, graph_mode(("FULL",), False).value
        ('FULL_AND_PIECEWISE', 'FULL_DECODE_ONLY')
    """
    if "FULL" not in modes:
        return CudagraphMode.PIECEWISE if modes else CudagraphMode.NONE
    if mixed_full:
        return CudagraphMode.FULL
    return CudagraphMode.FULL_AND_PIECEWISE if "PIECEWISE" in modes else CudagraphMode.FULL_DECODE_ONLY


BIG_CARD_GIB: Final = 70
HUGE_CARD_GIB: Final = 160
"""Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.28.0, 0.32.0)."""

AMPERE: Final = 80
UNKNOWN_CAPABILITY: Final = (8, 0)
"""A card that is not known counts as Ampere."""


class MemoryTier(StrEnum):
    """How much memory a card has, as far as defaults go by it."""

    SMALL = "small"
    BIG = "big"
    HUGE = "huge"


class Chip(StrEnum):
    """The generations of Ascend chips, as vllm-ascend tells them apart."""

    UNKNOWN = ""
    """Another card, or one whose name does not say: it counts as the usual A2 or A3."""
    ATLAS_310P = "310P"
    FIRST_910 = "910A"
    """Ascend 910, 910A, 910 Pro A and B: the generation before A2."""
    A2_A3 = "A2/A3"
    A5 = "A5"
    """Ascend 950."""


CHIP_NAMES: Final = (
    (re.compile(r"310p"), Chip.ATLAS_310P),
    (re.compile(r"910\s*-?(pro[\s-]*[ab]|a)\b"), Chip.FIRST_910),
    (re.compile(r"950|910_95|\ba5\b"), Chip.A5),
    (re.compile(r"910|800|\ba[23]\b"), Chip.A2_A3),
)
"""Source: vllm_ascend/utils.py:check_ascend_device_type (0.13.0, 0.23.0: 200 to 205 310P, 220 to 225 A2, 250 to 255 A3,
260 A5, and no other), setup.py (0.23.0: names of chips)."""


def chip_of(accelerator: Accelerator) -> Chip:
    """The generation of an Ascend card, by its name.

    Example:
        >>> from kvcore import catalogue
        >>> [chip_of(catalogue.find_accelerator(name)).value for name in ("Ascend-910A-32GB", "Ascend-910B4-32GB")]
        ['910A', 'A2/A3']
    """
    if accelerator.vendor is not Vendor.HUAWEI:
        return Chip.UNKNOWN
    name = accelerator.name.lower()
    return next((chip for pattern, chip in CHIP_NAMES if pattern.search(name)), Chip.UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """A card as flags see it. Cards with equal views resolve to the same flags, the same refusals and weights."""

    vendor: Vendor
    compute_capability: tuple[int, int] | None
    """Of CUDA cards; None when unknown."""
    memory_tier: MemoryTier
    is_a100: bool
    is_gaudi: bool
    chip: Chip
    """The generation of an Ascend card."""
    is_assumed: bool
    """Nobody named it: it stands for a card that is still open."""
    label: str = field(compare=False)
    """Its name, for messages alone: nothing may depend on it."""

    @property
    def number(self) -> int:
        """major × 10 + minor; a card that is not known counts as Ampere."""
        major, minor = self.compute_capability or UNKNOWN_CAPABILITY
        return major * 10 + minor

    @property
    def is_310p(self) -> bool:
        """Whether it is an Ascend 310P, which has no bfloat16 and a worker of its own."""
        return self.chip is Chip.ATLAS_310P

    @property
    def words(self) -> Mapping[str, str]:
        """The card in the words of a refusal."""
        known = self.compute_capability
        return {"name": self.label, "capability": "unknown" if known is None else ".".join(map(str, known))}

    @property
    def predates_ampere(self) -> bool:
        """Whether it is a card of NVIDIA without bfloat16, for which V1 came late.

        Source: vllm/platforms/cuda.py:CudaPlatformBase.supported_dtypes (0.32.0).
        """
        return self.vendor is Vendor.NVIDIA and self.number < AMPERE


@kept
def view_of(accelerator: Accelerator, is_assumed: bool = False) -> CardView:
    """The view of `accelerator`.

    Example:
        >>> from kvcore import catalogue
        >>> l4, l40s = (view_of(catalogue.find_accelerator(name)) for name in ("L4-24GB", "L40S-48GB"))
        >>> l4 == l40s, l4.number, l4.memory_tier.value
        (True, 89, 'small')
    """
    memory = accelerator.memory_gib
    big = MemoryTier.BIG if memory >= BIG_CARD_GIB else MemoryTier.SMALL
    return CardView(
        vendor=accelerator.vendor,
        compute_capability=accelerator.compute_capability,
        memory_tier=MemoryTier.HUGE if memory >= HUGE_CARD_GIB else big,
        is_a100="a100" in accelerator.name.lower(),
        is_gaudi=accelerator.id.startswith("Gaudi"),
        chip=chip_of(accelerator),
        is_assumed=is_assumed,
        label=accelerator.name,
    )


def without_card(scenario: Scenario) -> Scenario:
    """`scenario` with its card still open, for what may read the view alone."""
    return scenario if scenario.accelerator is None else replace(scenario, accelerator=None)
