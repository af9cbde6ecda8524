"""SGLang's settings as a page shows them: its own names, what they mean to it, and arguments that it alone has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.base.words import msg
from kvcore.engine.names import OwnArgument, OwnName
from kvcore.engines.sglang.shapes import Shape

NAMES: Final[Mapping[str, OwnName]] = {
    "gpu_memory_utilization": OwnName(
        spelling="--mem-fraction-static",
        label=msg("Static memory fraction"),
        help=msg(
            "The share of the memory that was free before the weights, for weights and KV pools. Activations, graphs "
            "and the request table must fit in the rest: a refused start wants it higher, out of memory at run time "
            "wants it lower."
        ),
    ),
    "max_model_len": OwnName(
        spelling="--context-length",
        help=msg(
            "A context longer than the pool starts all the same, and a request longer than the pool is refused when "
            "it comes. The request table grows with it, outside the fraction."
        ),
    ),
    "tensor_parallel_size": OwnName(
        spelling="--tp",
        help=msg("GPUs that share every layer. KV heads that they cannot divide are repeated."),
    ),
    "data_parallel_size": OwnName(
        spelling="--dp", help=msg("Replicas of the whole model, each with its own pools.")
    ),
    "pipeline_parallel_size": OwnName(
        spelling="--pp",
        help=msg("Stages, each with a part of the layers. The least pool of them counts for all."),
    ),
    "enable_expert_parallel": OwnName(
        spelling="--ep", help=msg("Experts are divided whole over the GPUs. Pools stay as they are.")
    ),
    "max_num_seqs": OwnName(
        spelling="--max-running-requests",
        label=msg("Max running requests"),
        help=msg(
            "A hard limit that is fixed at the start; left open it follows the pool, between 2,048 and 4,096."
        ),
    ),
    "max_num_batched_tokens": OwnName(
        spelling="--chunked-prefill-size",
        label=msg("Chunked prefill size (tokens)"),
        help=msg(
            "Tokens of prompts in one step. Its default, and the default fraction, follow the card's memory."
        ),
    ),
    "block_size": OwnName(
        spelling="--page-size",
        label=msg("Page size (tokens)"),
        help=msg("Tokens in one page of the pool; 1 unless the attention backend needs more."),
    ),
    "kv_cache_dtype": OwnName(
        spelling="--kv-cache-dtype",
        help=msg("auto is the model's own. fp8_e4m3 halves the bytes of a token."),
    ),
    "max_cudagraph_capture_size": OwnName(
        spelling="--cuda-graph-max-bs",
        label=msg("CUDA graphs up to (requests)"),
        help=msg("The largest decode batch that is captured. Graphs are outside the fraction."),
    ),
    "enforce_eager": OwnName(
        spelling="--disable-cuda-graph", help=msg("Nothing is captured: decoding is slower.")
    ),
    "enable_prefix_caching": OwnName(
        spelling="--disable-radix-cache",
        label=msg("Radix cache"),
        help=msg("Prefixes of finished requests stay in the pool until their place is needed."),
    ),
    "dtype": OwnName(spelling="--dtype"),
    "quantization": OwnName(spelling="--quantization"),
    "cpu_offload_gb": OwnName(spelling="--cpu-offload-gb"),
    "enable_lora": OwnName(spelling="--enable-lora"),
    "max_loras": OwnName(spelling="--max-loras-per-batch"),
    "max_lora_rank": OwnName(spelling="--max-lora-rank"),
    "disable_custom_all_reduce": OwnName(spelling="--disable-custom-all-reduce"),
}
BACKEND: Final = OwnArgument(
    name="attention_backend",
    label=msg("Attention backend"),
    help=msg("`--attention-backend`: left open, card and model decide. It decides the page size too."),
    kind="choice",
    choices=("fa3", "flashinfer", "triton", "trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla", "fa4",
             "aiter", "torch_native"),
)  # fmt: skip
MOST_TOKENS: Final = OwnArgument(
    name="max_total_tokens",
    label=msg("Max total tokens"),
    help=msg("`--max-total-tokens`: the pool holds no more than these, whatever the fraction leaves."),
    kind="whole",
)
WINDOWS: Final = OwnArgument(
    name="swa_full_tokens_ratio",
    label=msg("Window pool / full pool"),
    help=msg(
        "`--swa-full-tokens-ratio`: tokens of the pool of windows as a share of the full one; 0.8 unless set."
    ),
    kind="share",
)
ONE_POOL: Final = OwnArgument(
    name="disable_hybrid_swa_memory",
    label=msg("One pool for windows too"),
    help=msg("`--disable-hybrid-swa-memory`: every layer keeps every token."),
    kind="switch",
)
STATES: Final = OwnArgument(
    name="max_mamba_cache_size",
    label=msg("State slots"),
    help=msg("`--max-mamba-cache-size`: recurrent states that are kept. A request takes several slots."),
    kind="whole",
    largest=1 << 20,
)
RATIO: Final = OwnArgument(
    name="mamba_full_memory_ratio",
    label=msg("State memory / KV memory"),
    help=msg(
        "`--mamba-full-memory-ratio`: memory of states for each byte of keys and values; 0.9 unless set."
    ),
    kind="share",
)


def arguments_of(shape: Shape) -> tuple[OwnArgument, ...]:
    """The arguments that a page offers for a model: those of its pools among them."""
    return (
        BACKEND,
        MOST_TOKENS,
        *((WINDOWS, ONE_POOL) if shape.windows else ()),
        *((STATES, RATIO) if shape.is_hybrid else ()),
    )
