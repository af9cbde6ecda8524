"""The attention backend, its block size, the dtype of keys and values; the traits of a model that flags go by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, assert_never

from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.resolved import UNKNOWN_CAPABILITY, CardView
from kvcore.engine.vllm.classes import CLASSES
from kvcore.engine.vllm.switches import (
    AttentionBackend,
    AttentionKind,
    CacheWidth,
    Fp8Cards,
    Nvfp4Cards,
    SparseFp8Layout,
    Switches,
    V1Engine,
)
from kvcore.engine.vllm.versions import VLLM, BackendRow
from kvcore.errors import EngineRefusalError
from kvcore.kept import kept
from kvcore.model.architecture import (
    Architecture,
    BlockIndexer,
    ChunkedLocal,
    CompressedLatent,
    CrossAttention,
    FullAttention,
    LatentWindow,
    RecurrentState,
    SlidingWindow,
    SparseIndexer,
)

FP8_NAMES: Final = ("fp8", "fp8_e4m3", "fp8_inc")
"""Spellings of float8_e4m3fn. Source: vllm/utils/torch_utils.py:STR_DTYPE_TO_TORCH_DTYPE (0.32.0)."""

FP8_BY_DEFAULT_SM100: Final = ("glm_moe_dsa",)
"""Sparse models whose cache is fp8 on SM100 when nothing is asked.

Source: vllm/model_executor/models/config.py (0.32.0).
"""

PACKING_BACKENDS: Final = (AttentionBackend.FLASHMLA_SPARSE, AttentionBackend.FLASHINFER_MLA_SPARSE_SM120)
"""Sparse backends whose fp8 cache is fp8_ds_mla. Source: vllm/.../mla_attention.py (0.32.0)."""

KERNEL_BLOCK: Final = 16
"""Tokens of the smallest block of the attention kernels. Source: vllm/v1/attention/backends/flash_attn.py (0.8.5)."""

NARROW_HEAD: Final = 64
"""Elements of a head that the kernels before SM100 misread in nvfp4."""

PREFIX_FAMILIES: Final = ("gemma3", "gemma4")
"""Model types whose images attend to each other in both directions.

Source: vllm/config/model.py:is_mm_prefix_lm (0.32.0).
"""


def backend_to_ask_for(architecture: Architecture) -> AttentionBackend | None:
    """The attention backend that a start has to name, as the engine takes another one by itself; None without such."""
    forced = CLASSES.load().attention_backend.classes.items()
    return next((backend for backend, names in forced if architecture.read_as in names), None)


@kept
def attention_kind(architecture: Architecture) -> AttentionKind:
    """What the backend table asks of a model."""
    kinds = {type(cache) for layer in dict.fromkeys(architecture.layers) for cache in layer.caches}
    if kinds & {CompressedLatent, LatentWindow}:
        return AttentionKind.COMPRESSED
    if BlockIndexer in kinds:
        return AttentionKind.BLOCKS
    if SparseIndexer in kinds:
        return AttentionKind.SPARSE
    if architecture.is_mla:
        return AttentionKind.MLA
    if architecture.is_multimodal and architecture.model_type.startswith(PREFIX_FAMILIES):
        return AttentionKind.PREFIX
    return AttentionKind.PLAIN


@lru_cache(maxsize=4096)
def backend_row(version: Version, capability: int, attention: AttentionKind, is_fp8: bool) -> BackendRow:
    """The attention backend that `version` takes, with its block size.

    Source: the row's own.

    Example:
        >>> backend_row(Version("0.32.0"), 90, AttentionKind.MLA, False).backend.value
        'FLASH_ATTN_MLA'
    """
    caches = (CacheWidth.ANY, CacheWidth.FP8 if is_fp8 else CacheWidth.WIDE)
    for row in VLLM.load().backends:
        low, high = row.capability
        is_one = row.attention == attention and row.cache in caches
        if is_one and row.covers(version) and low <= capability <= high:
            return row
    return backend_row(version, capability, AttentionKind.PLAIN, is_fp8)


def kv_storage_dtype(
    *,
    asked: str,
    declared: str,
    dtype: str,
    attention: AttentionKind,
    architecture: Architecture,
    card: CardView,
    version: Version,
    switches: Switches,
) -> str:
    """The dtype in which keys and values are stored.

    `auto` is what the checkpoint declares, else the model's dtype, but for sparse models on some cards.

    Raises EngineRefusalError `fp8-kv-unsupported` or `nvfp4-kv-unsupported` for a card that cannot store it.

    Source: vllm/utils/torch_utils.py:kv_cache_dtype_str_to_dtype (0.32.0),
    vllm/model_executor/layers/attention/mla_attention.py:_canonicalize_sparse_mla_kv_cache_dtype (0.32.0).
    """
    name = asked
    if name == "auto":
        name = declared or dtype
        if attention is AttentionKind.SPARSE and not declared:
            name = _sparse_default(dtype, architecture, card, switches)
    if name in FP8_NAMES:
        name = "fp8_e4m3"
    if name in ("fp8_e4m3", "fp8_e5m2"):
        check_fp8(name, card, switches)
    if name.startswith("nvfp4"):
        check_nvfp4(name, attention, smallest_head_size(architecture), card, switches)
    if attention is AttentionKind.SPARSE and name.startswith("fp8"):
        by_backend = switches.sparse_fp8_layout is SparseFp8Layout.BY_BACKEND
        backend = backend_row(version, card.number, attention, True).backend
        if not by_backend or backend in PACKING_BACKENDS:
            return "fp8_ds_mla"
    return name


def _sparse_default(dtype: str, architecture: Architecture, card: CardView, switches: Switches) -> str:
    major = card.number // 10
    match switches.sparse_fp8_layout:
        case SparseFp8Layout.ALWAYS:
            return "fp8_ds_mla"
        case SparseFp8Layout.WITH_FP8:
            return dtype
        case SparseFp8Layout.BY_BACKEND:
            by_card = major == 12 or (major == 10 and architecture.model_type in FP8_BY_DEFAULT_SM100)
            return "fp8_e4m3" if by_card else dtype
        case other:
            assert_never(other)


def check_fp8(name: str, card: CardView, switches: Switches) -> None:
    """Refuses fp8 keys and values on a card that has no kernel for them.

    Source: vllm/platforms/cuda.py:CudaPlatformBase.is_kv_cache_dtype_supported (0.11.0),
    vllm/v1/attention/backends/triton_attn.py:TritonAttentionImpl (0.32.0).
    """
    major, minor = card.compute_capability or UNKNOWN_CAPABILITY
    supported = card.vendor is not Vendor.HUAWEI
    if card.vendor is Vendor.NVIDIA and card.compute_capability is not None:
        supported = major >= 8
        if switches.fp8_kv_cache is Fp8Cards.FLASH_ATTENTION:
            supported = (major, minor) in ((9, 0), (10, 0)) or switches.v1_engine is not V1Engine.ONLY
    if not supported:
        raise EngineRefusalError(
            "fp8-kv-unsupported",
            field="kv_cache_dtype",
            value=name,
            name=card.label,
            capability=f"{major}.{minor}" if card.compute_capability else "unknown",
        )


@kept
def smallest_head_size(architecture: Architecture) -> int:
    """Elements of a key of the attention layer with the smallest heads; 0 without one."""
    sizes = {
        cache.head_size
        for layer in dict.fromkeys(architecture.layers)
        for cache in layer.caches
        if isinstance(cache, FullAttention | SlidingWindow)
    }
    return min(sizes, default=0)


def check_nvfp4(
    name: str, attention: AttentionKind, head_size: int, card: CardView, switches: Switches
) -> None:
    """Refuses nvfp4 keys and values on a card, or for heads, that have no kernel for them.

    Raises EngineRefusalError `nvfp4-kv-unsupported`.

    Source: vllm/v1/attention/backends/flashinfer.py:FlashInferBackend.supports_kv_cache_dtype (0.31.0, 0.32.0),
    FlashInferBackend.supports_combination (0.33.0).
    """
    major = card.compute_capability[0] if card.compute_capability else None
    is_known = card.vendor is not Vendor.NVIDIA or major is not None
    only_sm100 = switches.nvfp4_kv_cache is Nvfp4Cards.SM100 or head_size == NARROW_HEAD
    families = (10,) if only_sm100 else (8, 9, 10, 12)
    has_kernels = major in families and attention in (AttentionKind.PLAIN, AttentionKind.PREFIX)
    if is_known and name == "nvfp4" and not has_kernels:
        raise EngineRefusalError(
            "nvfp4-kv-unsupported",
            field="kv_cache_dtype",
            value=name,
            name=card.label,
            capability=".".join(map(str, card.compute_capability or ("unknown",))),
        )


def check_sparse_attention(attention: AttentionKind, card: CardView, switches: Switches) -> None:
    """Refuses sparse latent attention (DeepSeek-V3.2, GLM-5) on an NVIDIA card without kernels for it.

    Raises EngineRefusalError `sparse-attention-unsupported`.

    Source: that of `Switches.sparse_attention`.
    """
    capability = card.compute_capability
    if attention is not AttentionKind.SPARSE or card.vendor is not Vendor.NVIDIA or capability is None:
        return
    if capability[0] not in switches.sparse_attention:
        raise EngineRefusalError(
            "sparse-attention-unsupported",
            field="accelerator",
            name=card.label,
            capability=f"{capability[0]}.{capability[1]}",
        )


def check_block_size(
    block_size: int | None, version: Version, switches: Switches, *, runs_kernels: bool
) -> None:
    """Refuses a block size that the release's parser or, with `runs_kernels`, its attention kernels do not take.

    Raises EngineRefusalError `block-size-not-in-release` or `block-size-not-in-kernels`.

    Source: vllm/config/cache.py:BlockSize (0.17.1); get_supported_kernel_block_sizes of
    vllm/v1/attention/backends/flash_attn.py, triton_attn.py, flex_attention.py (0.33.0), whose multiples count.
    """
    if block_size is None:
        return
    taken = switches.block_sizes
    if taken and block_size not in taken:
        raise EngineRefusalError(
            "block-size-not-in-release",
            field="block_size",
            value=block_size,
            version=version,
            taken=", ".join(map(str, taken)),
        )
    if runs_kernels and block_size % KERNEL_BLOCK:
        raise EngineRefusalError(
            "block-size-not-in-kernels", field="block_size", value=block_size, multiple=KERNEL_BLOCK
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What the flags' defaults ask of a model."""

    attention: AttentionKind
    recurrent: frozenset[str]
    is_hybrid: bool
    is_attention_free: bool
    is_encoder_decoder: bool
    is_bidirectional: bool
    """Each token looks at all others, and nothing is kept of a request."""
    has_chunked_local: bool


@kept
def traits_of(architecture: Architecture) -> Traits:
    """The traits of `architecture`, from its layers' caches."""
    caches = {cache for layer in dict.fromkeys(architecture.layers) for cache in layer.caches}
    recurrent = frozenset(cache.kind for cache in caches if isinstance(cache, RecurrentState))
    others = [cache for cache in caches if not isinstance(cache, RecurrentState)]
    return Traits(
        attention=attention_kind(architecture),
        recurrent=recurrent,
        is_hybrid=bool(recurrent and others),
        is_attention_free=bool(recurrent and not others),
        is_encoder_decoder=any(isinstance(cache, CrossAttention) for cache in caches),
        is_bidirectional=not caches,
        has_chunked_local=any(isinstance(cache, ChunkedLocal) for cache in caches),
    )
