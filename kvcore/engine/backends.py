"""The attention backend, the block size it prefers, and the dtype of keys and values."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from packaging.version import Version

from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.versions import BackendRow, Switches, backend_rows
from kvcore.errors import EngineRefusalError
from kvcore.kept import kept
from kvcore.model.architecture import Architecture
from kvcore.model.cache_state import (
    BlockIndexer,
    CompressedLatent,
    FullAttention,
    LatentWindow,
    SlidingWindow,
    SparseIndexer,
)

FP8_NAMES: Final = ("fp8", "fp8_e4m3", "fp8_inc")
"""Spellings of float8_e4m3fn. Source: vllm/utils/torch_utils.py:STR_DTYPE_TO_TORCH_DTYPE (0.32.0)."""

FP8_BY_DEFAULT_SM100: Final = ("glm_moe_dsa",)
"""Sparse models whose cache is fp8 on SM100 when nothing is asked.

Source: vllm/model_executor/models/config.py (0.32.0).
"""

PACKING_BACKENDS: Final = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")
"""Sparse backends whose fp8 cache is fp8_ds_mla. Source: vllm/.../mla_attention.py (0.32.0)."""

KERNEL_BLOCK: Final = 16
"""Tokens of the smallest block of the attention kernels. Source: vllm/v1/attention/backends/flash_attn.py (0.8.5)."""

NARROW_HEAD: Final = 64
"""Elements of a head that the kernels before SM100 misread in nvfp4."""

PREFIX_FAMILIES: Final = ("gemma3", "gemma4")
"""Model types whose images attend to each other in both directions.

Source: vllm/config/model.py:is_mm_prefix_lm (0.32.0).
"""


ONLY_ON_TRITON: Final = frozenset({"Rnj1ForCausalLM", "Step1ForCausalLM"})
"""Classes that every other backend refuses: chunks that look back, the square root of ALiBi. They have to ask for it.

Source: vllm/model_executor/layers/attention/attention.py:Attention.__init__, vllm/model_executor/models/rnj1.py,
step1.py (0.32.0).
"""


def backend_to_ask_for(architecture: Architecture) -> str | None:
    """The attention backend that a start has to name, as the engine takes another one by itself; None without such."""
    return "TRITON_ATTN" if architecture.read_as in ONLY_ON_TRITON else None


@kept
def attention_kind(architecture: Architecture) -> str:
    """mla, sparse, blocks, compressed, prefix or plain: what the backend table asks of a model."""
    kinds = {type(cache) for layer in dict.fromkeys(architecture.layers) for cache in layer.caches}
    if kinds & {CompressedLatent, LatentWindow}:
        return "compressed"
    if BlockIndexer in kinds:
        return "blocks"
    if SparseIndexer in kinds:
        return "sparse"
    if architecture.is_mla:
        return "mla"
    if architecture.is_multimodal and architecture.model_type.startswith(PREFIX_FAMILIES):
        return "prefix"
    return "plain"


def capability_number(accelerator: Accelerator) -> int:
    """major × 10 + minor; a card that is not known counts as Ampere."""
    major, minor = accelerator.compute_capability or (8, 0)
    return major * 10 + minor


@lru_cache(maxsize=4096)
def backend_row(version: Version, capability: int, attention: str, is_fp8: bool) -> BackendRow:
    """The attention backend that `version` takes, with its block size.

    Source: the row's own.

    Example:
        >>> backend_row(Version("0.32.0"), 90, "mla", False).backend
        'FLASH_ATTN_MLA'
    """
    for row in backend_rows():
        low, high = row.capability
        if (
            row.attention == attention
            and row.since <= version < row.below
            and low <= capability <= high
            and (row.cache == "any" or (row.cache == "fp8") == is_fp8)
        ):
            return row
    return backend_row(version, capability, "plain", is_fp8)


def kv_storage_dtype(
    *,
    asked: str,
    declared: str,
    dtype: str,
    attention: str,
    architecture: Architecture,
    accelerator: Accelerator,
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
        if attention == "sparse" and not declared:
            name = _sparse_default(dtype, architecture, accelerator, switches)
    if name in FP8_NAMES:
        name = "fp8_e4m3"
    if name in ("fp8_e4m3", "fp8_e5m2"):
        check_fp8(name, accelerator, switches)
    if name.startswith("nvfp4"):
        check_nvfp4(name, attention, smallest_head_size(architecture), accelerator, switches)
    if attention == "sparse" and name.startswith("fp8"):
        by_backend = switches.sparse_fp8_layout == "by-backend"
        backend = backend_row(version, capability_number(accelerator), attention, True).backend
        if not by_backend or backend in PACKING_BACKENDS:
            return "fp8_ds_mla"
    return name


def _sparse_default(
    dtype: str, architecture: Architecture, accelerator: Accelerator, switches: Switches
) -> str:
    major = capability_number(accelerator) // 10
    if switches.sparse_fp8_layout == "always":
        return "fp8_ds_mla"
    by_card = major == 12 or (major == 10 and architecture.model_type in FP8_BY_DEFAULT_SM100)
    return "fp8_e4m3" if by_card and switches.sparse_fp8_layout == "by-backend" else dtype


def check_fp8(name: str, accelerator: Accelerator, switches: Switches) -> None:
    """Refuses fp8 keys and values on a card that has no kernel for them.

    Source: vllm/platforms/cuda.py:CudaPlatformBase.is_kv_cache_dtype_supported (0.11.0),
    vllm/v1/attention/backends/triton_attn.py:TritonAttentionImpl (0.32.0).
    """
    major, minor = accelerator.compute_capability or (8, 0)
    supported = accelerator.vendor is not Vendor.HUAWEI
    if accelerator.vendor is Vendor.NVIDIA and accelerator.compute_capability is not None:
        supported = major >= 8
        if switches.fp8_kv_cache == "flash-attention":
            supported = (major, minor) in ((9, 0), (10, 0)) or switches.v1_engine != "only"
    if not supported:
        raise EngineRefusalError(
            "fp8-kv-unsupported",
            field="kv_cache_dtype",
            value=name,
            name=accelerator.name,
            capability=f"{major}.{minor}" if accelerator.compute_capability else "unknown",
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
    name: str, attention: str, head_size: int, accelerator: Accelerator, switches: Switches
) -> None:
    """Refuses nvfp4 keys and values on a card, or for heads, that have no kernel for them.

    Raises EngineRefusalError `nvfp4-kv-unsupported`.

    Source: vllm/v1/attention/backends/flashinfer.py:FlashInferBackend.supports_kv_cache_dtype (0.31.0, 0.32.0),
    FlashInferBackend.supports_combination (0.33.0).
    """
    major = accelerator.compute_capability[0] if accelerator.compute_capability else None
    is_known = accelerator.vendor is not Vendor.NVIDIA or major is not None
    families = (10,) if switches.nvfp4_kv_cache == "sm100" or head_size == NARROW_HEAD else (8, 9, 10, 12)
    if is_known and name == "nvfp4" and (major not in families or attention not in ("plain", "prefix")):
        raise EngineRefusalError(
            "nvfp4-kv-unsupported",
            field="kv_cache_dtype",
            value=name,
            name=accelerator.name,
            capability=".".join(map(str, accelerator.compute_capability or ("unknown",))),
        )


def check_sparse_attention(attention: str, accelerator: Accelerator, switches: Switches) -> None:
    """Refuses sparse latent attention (DeepSeek-V3.2, GLM-5) on an NVIDIA card without kernels for it.

    Raises EngineRefusalError `sparse-attention-unsupported`.

    Source: that of `Switches.sparse_attention`.
    """
    capability = accelerator.compute_capability
    if attention != "sparse" or accelerator.vendor is not Vendor.NVIDIA or capability is None:
        return
    if str(capability[0]) not in switches.sparse_attention.split():
        raise EngineRefusalError(
            "sparse-attention-unsupported",
            field="accelerator",
            name=accelerator.name,
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
    taken = switches.block_sizes.split()
    if taken and str(block_size) not in taken:
        raise EngineRefusalError(
            "block-size-not-in-release",
            field="block_size",
            value=block_size,
            version=version,
            taken=", ".join(taken),
        )
    if runs_kernels and block_size % KERNEL_BLOCK:
        raise EngineRefusalError(
            "block-size-not-in-kernels", field="block_size", value=block_size, multiple=KERNEL_BLOCK
        )
