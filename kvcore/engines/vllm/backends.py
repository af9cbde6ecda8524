"""The attention backend, the block size it prefers, and the dtype of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, assert_never

from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.cards import UNKNOWN_CAPABILITY, CardView
from kvcore.engine.switches import (
    AttentionBackend,
    AttentionKind,
    CacheWidth,
    Fp8Cards,
    Nvfp4Cards,
    SparseFp8Layout,
    Switches,
    V1Engine,
)
from kvcore.engines.vllm.classes import CLASSES
from kvcore.engines.vllm.start import Start
from kvcore.engines.vllm.versions import VLLM, BackendRow
from kvcore.model.architecture import Architecture

FP8_NAMES: Final = ("fp8", "fp8_e4m3", "fp8_inc")
"""Spellings of float8_e4m3fn. Source: vllm/utils/torch_utils.py:STR_DTYPE_TO_TORCH_DTYPE (0.32.0)."""

FP8_BY_DEFAULT_SM100: Final = ("glm_moe_dsa", "glm5_next", "glm5_next_text")
"""Sparse models whose cache is fp8 on SM100 when nothing is asked.

Source: vllm/model_executor/models/config.py:GlmMoeDsaForCausalLM, Glm5NextModelConfig (0.32.0, 0.33.0).
"""

PACKING_BACKENDS: Final = (AttentionBackend.FLASHMLA_SPARSE, AttentionBackend.FLASHINFER_MLA_SPARSE_SM120)
"""Sparse backends whose fp8 cache is fp8_ds_mla. Source: vllm/.../mla_attention.py (0.32.0)."""

KERNEL_BLOCK: Final = 16
"""Tokens of the smallest block of the attention kernels. Source: vllm/v1/attention/backends/flash_attn.py (0.8.5)."""

PACKED: Final = (AttentionKind.TURBOQUANT, AttentionKind.ULTRAQUANT, AttentionKind.OCTAVE)
"""Kinds that a KV cache dtype begins with: keys and values in one slot, with a backend of its own."""
OCTAVE_HEAD: Final = (256, 64)
"""Elements of a head, and those rotated, that Octave's kernels take.

Source: vllm/v1/attention/backends/rocm_octave_attn.py:RocmOctaveAttentionImpl.__init__ (0.33.0).
"""
INDEXER_KV_DTYPES: Final = {AttentionKind.BLOCKS: ("bf16", "fp8"), AttentionKind.SPARSE: ("fp8", "mxfp4")}
NARROW_HEAD: Final = 64
"""Elements of a head that the kernels before SM100 misread in nvfp4."""


def backend_to_ask_for(architecture: Architecture) -> AttentionBackend | None:
    """The attention backend that a start has to name, as the engine takes another one by itself; None without such."""
    return _forced_backends().get(architecture.read_as)


@cache
def _forced_backends() -> Mapping[str, AttentionBackend]:
    """The backend that a start of a class has to name."""
    forced = CLASSES.load().attention_backend.classes.items()
    return {name: backend for backend, names in forced for name in names}


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


def kv_storage_dtype(start: Start, dtype: str) -> str:
    """The dtype in which keys and values are stored, of a model in `dtype`.

    `auto` is what the checkpoint declares, else the model's dtype, but for sparse models on some cards.

    Raises EngineRefusalError `fp8-kv-unsupported` or `nvfp4-kv-unsupported` for a card that cannot store it, and
    `kv-cache-dtype-not-the-models` for another 16-bit dtype than the model's where the release takes none.

    Source: vllm/utils/torch_utils.py:kv_cache_dtype_str_to_dtype (0.32.0),
    vllm/model_executor/layers/attention/mla_attention.py:_canonicalize_sparse_mla_kv_cache_dtype (0.32.0).
    """
    name, declared = start.scenario.kv_cache_dtype, start.quantization.kv_cache_dtype
    is_sparse = start.traits.attention is AttentionKind.SPARSE
    if name == "auto":
        name = declared or (_sparse_default(start, dtype) if is_sparse else dtype)
    elif name in ("float16", "bfloat16") and name != dtype and start.switches.float_kv_cache_follows_model:
        raise EngineRefusalError(
            "kv-cache-dtype-not-the-models", field="kv_cache_dtype", value=name, dtype=dtype
        )
    if name in FP8_NAMES:
        name = "fp8_e4m3"
    if name in ("fp8_e4m3", "fp8_e5m2"):
        _check_fp8(name, start.card, start.switches)
    if name in ("nvfp4", "nvfp4_4over6"):
        _check_nvfp4(start)
    if name.startswith((AttentionKind.OCTAVE, AttentionKind.ULTRAQUANT)):
        _check_on_rocm(start, name)
    if is_sparse and name.startswith("fp8"):
        by_backend = start.switches.sparse_fp8_layout is SparseFp8Layout.BY_BACKEND
        backend = backend_row(start.version, start.card.number, AttentionKind.SPARSE, True).backend
        if not by_backend or backend in PACKING_BACKENDS:
            return "fp8_ds_mla"
    return name


def _sparse_default(start: Start, dtype: str) -> str:
    if start.engine.attention is not None:
        return dtype  # vllm_ascend/platform.py:check_and_update_config (0.11.0, 0.23.0): that of the model
    major = start.card.number // 10
    match start.switches.sparse_fp8_layout:
        case SparseFp8Layout.ALWAYS:
            return "fp8_ds_mla"
        case SparseFp8Layout.WITH_FP8:
            return dtype
        case SparseFp8Layout.BY_BACKEND:
            is_listed = start.architecture.model_type in FP8_BY_DEFAULT_SM100
            return "fp8_e4m3" if major == 12 or (major == 10 and is_listed) else dtype
        case other:
            assert_never(other)


def _check_fp8(name: str, card: CardView, switches: Switches) -> None:
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
        raise EngineRefusalError("fp8-kv-unsupported", field="kv_cache_dtype", value=name, **card.words)


def _check_nvfp4(start: Start) -> None:
    """Refuses nvfp4 keys and values on a card, or for heads, that have no kernel for them.

    Raises EngineRefusalError `nvfp4-kv-unsupported`.

    Source: vllm/v1/attention/backends/flashinfer.py:FlashInferBackend.supports_kv_cache_dtype (0.31.0, 0.32.0),
    FlashInferBackend.supports_combination (0.33.0).
    """
    card, traits = start.card, start.traits
    major = card.compute_capability[0] if card.compute_capability else None
    is_known = card.vendor is not Vendor.NVIDIA or major is not None
    only_sm100 = start.switches.nvfp4_kv_cache is Nvfp4Cards.SM100 or traits.smallest_head == NARROW_HEAD
    families = (10,) if only_sm100 else (8, 9, 10, 12)
    has_kernels = major in families and traits.attention in (AttentionKind.PLAIN, AttentionKind.PREFIX)
    if is_known and not has_kernels:
        raise EngineRefusalError("nvfp4-kv-unsupported", field="kv_cache_dtype", value="nvfp4", **card.words)


def _check_on_rocm(start: Start, name: str) -> None:
    """Refuses Octave and UltraQuant off ROCm, and heads that their kernels do not take.

    Raises EngineRefusalError `octave-kv-unsupported`.

    Source: vllm/v1/attention/backends/rocm_octave_attn.py, ultraquant_attn.py, platforms/rocm.py:
    _get_backend_priorities (0.33.0).
    """
    tables, head = start.architecture.rotary_tables, start.traits.smallest_head
    rotary = tables[0].rotary_dim if tables else 0
    has_heads = (head, rotary) == OCTAVE_HEAD or name.startswith(AttentionKind.ULTRAQUANT)
    if (
        start.card.vendor is not Vendor.AMD
        or not has_heads
        or start.traits.attention is not AttentionKind.PLAIN
    ):
        facts = {"name": start.card.label, "head": head, "rotary": rotary}
        raise EngineRefusalError("octave-kv-unsupported", "kv_cache_dtype", name, **facts)


def stores_narrow_keys(start: Start) -> bool:
    """Whether keys by which attention picks blocks (MiniMax M3) take a byte an element, not two.

    Raises EngineRefusalError `indexer-kv-unsupported` for a dtype that the model's indexer does not take.

    Source: vllm/models/minimax_m3/common/indexer.py:MiniMaxM3IndexerCache (0.25.0, 0.33.0), vllm/v1/attention/backends/
    mla/indexer.py:DSA_INDEXER_KV_DTYPES (0.29.0, 0.33.0).
    """
    asked = start.scenario.indexer_kv_dtype
    taken = INDEXER_KV_DTYPES.get(start.traits.attention, (asked,))
    if asked != "auto" and asked not in taken:
        facts = {"model": start.architecture.model_type, "taken": ", ".join(taken)}
        raise EngineRefusalError("indexer-kv-unsupported", "indexer_kv_dtype", asked, **facts)
    return asked == "fp8" and start.traits.attention is AttentionKind.BLOCKS


def check_sparse_attention(start: Start) -> None:
    """Refuses sparse latent attention (DeepSeek-V3.2, GLM-5) on an NVIDIA card without kernels for it.

    Raises EngineRefusalError `sparse-attention-unsupported`.

    Source: that of `Switches.sparse_attention`.
    """
    card, is_sparse = start.card, start.traits.attention is AttentionKind.SPARSE
    if not is_sparse or card.vendor is not Vendor.NVIDIA or card.compute_capability is None:
        return
    if card.compute_capability[0] not in start.switches.sparse_attention:
        raise EngineRefusalError("sparse-attention-unsupported", field="accelerator", **card.words)


def check_prefill_context(start: Start, backend: str) -> None:
    """Refuses prefill context parallelism where the attention backend of vLLM itself does not take it.

    Raises EngineRefusalError `prefill-context-unsupported`.

    Source: vllm/v1/worker/cp_utils.py:check_attention_cp_compatibility (0.13.0, 0.26.0, 0.33.0).
    """
    size, kind = start.scenario.parallel.prefill_context_parallel_size, start.traits.attention
    takes = kind in (AttentionKind.MLA, AttentionKind.SPARSE, AttentionKind.COMPRESSED)
    if size > 1 and start.engine.attention is None and not (takes and start.switches.prefill_context):
        raise EngineRefusalError(
            "prefill-context-unsupported", "prefill_context_parallel_size", size, backend=backend
        )


def check_block_size(start: Start) -> None:
    """Refuses a block size that the release's parser or its attention kernels, where they run, do not take.

    Raises EngineRefusalError `block-size-not-in-release` or `block-size-not-in-kernels`.

    Source: vllm/config/cache.py:BlockSize (0.17.1); get_supported_kernel_block_sizes of
    vllm/v1/attention/backends/flash_attn.py, triton_attn.py, flex_attention.py (0.33.0), whose multiples count;
    mla/rocm_aiter_mla.py, rocm_aiter_mla_sparse.py (0.17.1 takes blocks of 1 alone, 0.33.0 them too).
    """
    block_size, taken, traits = start.scenario.block_size, start.switches.block_sizes, start.traits
    if block_size is None:
        return
    if taken and block_size not in taken:
        raise EngineRefusalError(
            "block-size-not-in-release",
            field="block_size",
            value=block_size,
            version=start.version,
            taken=", ".join(map(str, taken)),
        )
    runs_kernels = not (start.is_v0 or traits.is_attention_free or traits.is_bidirectional)
    is_latent = traits.attention in (AttentionKind.MLA, AttentionKind.SPARSE)
    takes_one = block_size == 1 and start.card.vendor is Vendor.AMD and is_latent
    if runs_kernels and not takes_one and block_size % KERNEL_BLOCK:
        raise EngineRefusalError("block-size-not-in-kernels", "block_size", block_size, multiple=KERNEL_BLOCK)


def backend_of(start: Start, kv_cache_dtype: str, *, fixed: bool = False) -> tuple[str, int]:
    """The attention backend and the block size, before hybrid alignment; `fixed`: prefixes are cached, prompts cut."""
    asked, own = start.scenario.block_size, start.engine.own_block_size(start, fixed)
    forced = backend_to_ask_for(start.architecture)
    if own is not None and start.engine.attention is not None:
        return forced or start.engine.attention.backend, own
    packed = next((kind for kind in PACKED if kv_cache_dtype.startswith(kind)), None)
    attention = packed or start.traits.attention
    is_narrow = kv_cache_dtype.startswith(("fp8", "nvfp4"))
    row = backend_row(start.version, start.card.number, attention, is_narrow)
    return forced or row.backend, row.block_size if asked is None or row.forced else asked
