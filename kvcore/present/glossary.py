"""The words of the page, explained in a sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcore.present.text import msg


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One word."""

    name: str
    meaning: str


GLOSSARY: Final = (
    Term(
        name=msg("Activations"),
        meaning=msg(
            "Temporary buffers of one step. The engine measures the peak at start and keeps that much free."
        ),
    ),
    Term(
        name=msg("Batch"),
        meaning=msg("The requests that one step computes together."),
    ),
    Term(
        name=msg("Block"),
        meaning=msg(
            "The unit in which the KV cache is allocated: 16 tokens unless the attention backend "
            "wants another size."
        ),
    ),
    Term(
        name=msg("Budget"),
        meaning=msg("Memory of the card × gpu_memory_utilization: what the engine may spend."),
    ),
    Term(
        name=msg("Chunked prefill"),
        meaning=msg(
            "Long prompts are computed in chunks, in the same steps as the decoding of other requests."
        ),
    ),
    Term(
        name=msg("Context length"),
        meaning=msg("Prompt and answer of one request together: --max-model-len."),
    ),
    Term(
        name=msg("CUDA graphs"),
        meaning=msg(
            "Recorded steps for fixed batch sizes that start without the processor's help. They take memory of "
            "their own."
        ),
    ),
    Term(
        name=msg("Data parallel (DP)"),
        meaning=msg("Whole replicas side by side; each has its own cache."),
    ),
    Term(
        name=msg("Decode"),
        meaning=msg("Making the answer token by token. Limited by memory bandwidth."),
    ),
    Term(
        name=msg("Expert parallel (EP)"),
        meaning=msg("Whole experts distributed over the GPUs instead of a slice of every one."),
    ),
    Term(
        name=msg("Grouped-query attention (GQA)"),
        meaning=msg("Several query heads share one KV head. The cache counts KV heads only."),
    ),
    Term(
        name=msg("Hybrid model"),
        meaning=msg("Some layers keep all tokens, others a window or a state of fixed size."),
    ),
    Term(
        name=msg("KV cache"),
        meaning=msg("Keys and values of all tokens so far, kept so that they are not computed again."),
    ),
    Term(
        name=msg("KV per token"),
        meaning=msg("2 × layers × KV heads × head size × bytes, on one GPU; less for MLA and windows."),
    ),
    Term(
        name=msg("Mixture of experts (MoE)"),
        meaning=msg("Every token uses a few experts; all of them have to be in memory."),
    ),
    Term(
        name=msg("Multi-head latent attention (MLA)"),
        meaning=msg(
            "One small vector per token and layer instead of keys and values. Tensor parallelism does not "
            "divide it."
        ),
    ),
    Term(
        name=msg("Out of memory (OOM)"),
        meaning=msg(
            "More memory is requested than is available. At start: too large a model or context. "
            "Later: activations larger than measured."
        ),
    ),
    Term(
        name=msg("Pipeline parallel (PP)"),
        meaning=msg("Every group of GPUs holds some of the layers."),
    ),
    Term(
        name=msg("Pool"),
        meaning=msg(
            "The blocks that the engine makes at start from the memory that is left. Its size never changes "
            "afterwards."
        ),
    ),
    Term(
        name=msg("Preemption"),
        meaning=msg("The pool is full: a request gives its blocks back and is computed again later."),
    ),
    Term(
        name=msg("Prefill"),
        meaning=msg("Computing the prompt up to the first token. Limited by arithmetic."),
    ),
    Term(
        name=msg("Prefix caching"),
        meaning=msg("Blocks of equal beginnings are shared between requests."),
    ),
    Term(
        name=msg("Quantization"),
        meaning=msg("Weights, or the cache, stored in fewer bits."),
    ),
    Term(
        name=msg("Rank"),
        meaning=msg("One GPU or NPU of a replica. A plan shows the one with the least memory to spare."),
    ),
    Term(
        name=msg("Replica"),
        meaning=msg("One engine with all its GPUs."),
    ),
    Term(
        name=msg("Requests at once"),
        meaning=msg(
            "How many requests of the full context length the KV cache has room for, at most max_num_seqs; of shorter "
            "ones more. The engine prints the first figure as Maximum concurrency."
        ),
    ),
    Term(
        name=msg("Tensor parallel (TP)"),
        meaning=msg("Every GPU holds a slice of every layer."),
    ),
    Term(
        name=msg("Time per output token (TPOT)"),
        meaning=msg("Seconds between two tokens of one answer."),
    ),
    Term(
        name=msg("Time to first token (TTFT)"),
        meaning=msg("Waiting in the queue and computing the prompt."),
    ),
    Term(
        name=msg("Tokens per second (TPS)"),
        meaning=msg("Throughput: of one request 1 / TPOT, of the server all requests together. Say which."),
    ),
    Term(
        name=msg("Weights"),
        meaning=msg("The parameters of the model: count × bytes, divided by TP and PP."),
    ),
)
"""In alphabetical order of the English words."""
