"""What the engine makes of the flags: every default filled in, for one version on one accelerator."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from kvcore.errors import Notice
from kvcore.scenario import CudagraphMode, Runner


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
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
    cudagraph_capture_sizes: tuple[int, ...]
    cudagraph_modes: tuple[str, ...]
    """Which graph sets are captured: PIECEWISE, FULL."""
    captures_mixed_full: bool = False
    """Full graphs are of every size; else of batches that only decode."""
    mamba_block_size: int | None = None
    """As asked."""
    mamba_cache_dtype: str = ""
    """Of what recurrent layers keep where the model's config names no dtype; "" for `dtype`."""
    mamba_ssm_cache_dtype: str = ""
    """Of the states themselves, before the model's config; "" where no flag says."""
    runner: Runner = Runner.GENERATE
    """generate or pooling."""
    num_speculative_tokens: int = 0
    speculative_method: str = ""
    """ngram, eagle, eagle3, mtp, draft_model, ...; "" without speculative decoding."""
    num_gpu_blocks_override: int | None = None
    quantization_method: str = "unquantized"
    """The engine's name of the storage format of the weights."""
    notices: tuple[Notice, ...] = ()

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
