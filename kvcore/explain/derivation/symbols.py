"""The letters of the derivation: one for each quantity, with its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcore.quantity import Quantity
from kvcore.texts.words import msg


@dataclass(frozen=True, kw_only=True, slots=True)
class Symbol:
    """A letter in LaTeX, and what it stands for."""

    latex: str
    meaning: str
    number: str = ""
    """Where several quantities of one kind stand in a formula."""


SYMBOLS: Final = {
    "total": Symbol(latex="M", meaning=msg("memory of the card")),
    "gpu_memory_utilization": Symbol(latex="u", meaning=msg("utilization")),
    "budget": Symbol(latex="B", meaning=msg("budget of the engine")),
    "outside": Symbol(latex="M_{o}", meaning=msg("memory outside the budget")),
    "system": Symbol(latex="S", meaning=msg("system")),
    "framework": Symbol(latex="F", meaning=msg("framework")),
    "framework.measured": Symbol(latex="F_{0}", meaning=msg("kernels and communication, fitted to logs")),
    "framework.buffers": Symbol(latex="F_{b}", meaning=msg("buffers of the runner")),
    "weights": Symbol(latex="W", meaning=msg("weights as loaded")),
    "activations": Symbol(latex="A", meaning=msg("activations")),
    "activations.layers": Symbol(latex="A_{l}", meaning=msg("one layer for the whole batch")),
    "activations.sampling": Symbol(latex="A_{s}", meaning=msg("sampling: logits of all sequences")),
    "activations.pooling": Symbol(latex="A_{p}", meaning=msg("pooling")),
    "activations.encoder": Symbol(latex="A_{e}", meaning=msg("vision encoder")),
    "activations.compiling": Symbol(latex="A_{c}", meaning=msg("compiling: a copy of the embedding table")),
    "activations.kept": Symbol(latex="A_{k}", meaning=msg("workspaces that stay")),
    "model_memory": Symbol(latex="E", meaning=msg("what the environment variable allots to the model")),
    "cuda_graphs": Symbol(latex="G", meaning=msg("CUDA graphs")),
    "counted_graphs": Symbol(latex="G_{c}", meaning=msg("engine's CUDA graph estimate")),
    "graphs": Symbol(latex="g", meaning=msg("number of graphs")),
    "bytes_per_graph_and_layer": Symbol(latex=r"\gamma", meaning=msg("memory of one layer in one graph")),
    "largest_batch": Symbol(latex="G_{a}", meaning=msg("activations of the largest captured batch")),
    "attention_splits": Symbol(latex="G_{s}", meaning=msg("partial outputs of split attention")),
    "workspaces": Symbol(latex="G_{w}", meaning=msg("workspaces of the capture")),
    "unaccounted": Symbol(latex=r"\Delta", meaning=msg("unaccounted for, with the given KV memory")),
    "remainder": Symbol(latex="K_{0}", meaning=msg("what the parts leave for the KV cache")),
    "available_kv": Symbol(latex="K", meaning=msg("memory left for the KV cache")),
    "kv_cache": Symbol(latex="K_{b}", meaning=msg("KV cache in whole blocks")),
    "unused": Symbol(latex="U", meaning=msg("unused")),
    "parameter_count": Symbol(latex="N", meaning=msg("parameters")),
    "stage_parameter_count": Symbol(
        latex="N", meaning=msg("parameters of the layers of this pipeline stage")
    ),
    "bytes_per_parameter": Symbol(latex=r"\beta", meaning=msg("bytes per parameter, on average")),
    "whole_parameters": Symbol(latex="P_{1}", meaning=msg("parameters if one GPU stored them all")),
    "tensor_parallel_size": Symbol(latex="t", meaning=msg("tensor parallel size")),
    "divided": Symbol(latex="D", meaning=msg("what tensor parallelism divides")),
    "replicated": Symbol(latex="R", meaning=msg("what every GPU stores in full")),
    "otherwise": Symbol(latex="X", meaning=msg("what is divided differently")),
    "parameters": Symbol(latex="P", meaning=msg("parameters on one GPU")),
    "weights.buffers": Symbol(latex="W_{b}", meaning=msg("tables of positions and scales")),
    "loading": Symbol(latex="W_{l}", meaning=msg("what loading adds or drops")),
    "drafts": Symbol(latex="W_{d}", meaning=msg("draft model")),
    "adapters": Symbol(latex="W_{a}", meaning=msg("LoRA slots")),
    "offloaded": Symbol(latex="W_{o}", meaning=msg("kept in the host's memory")),
    "dropped_head": Symbol(latex="W_{h}", meaning=msg("output head, not used by pooling")),
    "layers": Symbol(latex="L", meaning=msg("layers")),
    "group_layers": Symbol(latex="L_{g}", meaning=msg("layers of the largest group")),
    "kv_heads": Symbol(latex="h", meaning=msg("KV heads on one GPU")),
    "head_dim": Symbol(latex="d", meaning=msg("head dimension")),
    "key_dim": Symbol(latex="d_{k}", meaning=msg("dimension of a key")),
    "value_dim": Symbol(latex="d_{v}", meaning=msg("dimension of a value")),
    "element_bytes": Symbol(latex="e", meaning=msg("bytes of one number")),
    "head_bytes": Symbol(latex="d_{b}", meaning=msg("bytes of key and value of one head, with their scales")),
    "packed_bytes": Symbol(latex="v", meaning=msg("bytes of the packed vector")),
    "index_dim": Symbol(latex="d_{i}", meaning=msg("dimension of an index key")),
    "scale_bytes": Symbol(latex="d_{s}", meaning=msg("bytes of the scales")),
    "latent_rank": Symbol(latex="d_{c}", meaning=msg("numbers of the latent vector")),
    "rope_dim": Symbol(latex="d_{r}", meaning=msg("numbers for the position")),
    "page_size_bytes": Symbol(latex="p_{s}", meaning=msg("one block of one layer")),
    "padding": Symbol(latex="p_{0}", meaning=msg("padding up to the page of the other layers")),
    "layer_state_bytes": Symbol(latex="p_{r}", meaning=msg("the state of one layer")),
    "state_tensor": Symbol(latex="z", meaning=msg("one tensor of the state")),
    "aligned_states_bytes": Symbol(
        latex="p_{a}", meaning=msg("compressed vectors of one block of one layer")
    ),
    "page_states": Symbol(latex="a_{v}", meaning=msg("vectors of one block")),
    "state_bytes": Symbol(latex="v", meaning=msg("bytes of one vector")),
    "page_alignment": Symbol(latex="g", meaning=msg("bytes that a page is a multiple of")),
    "first_page_bytes": Symbol(latex="p_{1}", meaning=msg("a page of the first group")),
    "block_size": Symbol(latex="s", meaning=msg("tokens of a block")),
    "layer_token_bytes": Symbol(latex="p", meaning=msg("one token in one layer")),
    "context_ranks": Symbol(latex="c", meaning=msg("GPUs that share the tokens of one request")),
    "bytes_per_token": Symbol(latex="k", meaning=msg("one token in all layers, on one GPU")),
    "bytes_per_token_in_all": Symbol(latex="k_{all}", meaning=msg("one token on all GPUs together")),
    "growing_groups": Symbol(latex="a", meaning=msg("groups of layers that grow with the request")),
    "request_fixed": Symbol(latex="f", meaning=msg("what a request takes whatever its further length")),
    "growing_blocks": Symbol(
        latex="m_{g}", meaning=msg("blocks of one group of layers that keep every token")
    ),
    "fixed_blocks": Symbol(latex="m_{f}", meaning=msg("blocks of layers that keep only a part")),
    "fixed_groups": Symbol(latex="a_{f}", meaning=msg("groups of layers that keep only a part")),
    "window_blocks": Symbol(latex="m_{w}", meaning=msg("blocks of one layer with a limited window")),
    "state_blocks": Symbol(latex="m_{r}", meaning=msg("blocks of one layer with a recurrent state")),
    "encoder_blocks": Symbol(latex="m_{e}", meaning=msg("blocks of one layer for the encoder's output")),
    "encoder_tokens": Symbol(latex=r"\tau", meaning=msg("tokens of the encoder")),
    "sliding_window": Symbol(latex="w", meaning=msg("tokens in the window of a layer")),
    "attention_chunk_size": Symbol(latex="w", meaning=msg("tokens of a chunk")),
    "batch_tokens": Symbol(latex=r"\tau", meaning=msg("most tokens in one step")),
    "num_speculative_blocks": Symbol(latex="q_{s}", meaning=msg("blocks for draft tokens")),
    "num_checkpoint_blocks": Symbol(latex="q_{c}", meaning=msg("blocks for checkpoints of the state")),
    "in_flight_tokens": Symbol(latex="q", meaning=msg("tokens that may be in flight")),
    "bytes_per_block": Symbol(latex="b", meaning=msg("one block, with all its layers")),
    "stage_block_bytes": Symbol(latex="b'", meaning=msg("one block on that pipeline stage")),
    "checked_block_bytes": Symbol(latex="b_{c}", meaning=msg("one block as the start-up check counts it")),
    "num_gpu_blocks_override": Symbol(latex="n_{0}", meaning=msg("blocks that the flag sets")),
    "stage_blocks": Symbol(latex="n", meaning=msg("blocks that a pipeline stage has memory for")),
    "blocks": Symbol(latex="n", meaning=msg("blocks")),
    "tokens": Symbol(latex="T", meaning=msg("tokens that fit in the KV cache")),
    "group_count": Symbol(latex="a", meaning=msg("groups of layers that share the pool")),
    "max_model_len": Symbol(latex=r"\ell", meaning=msg("tokens of a request of full length")),
    "typical_length": Symbol(latex=r"\ell'", meaning=msg("tokens of a shorter request")),
    "blocks_per_request": Symbol(latex="m", meaning=msg("blocks of one request of full length")),
    "checked_blocks": Symbol(
        latex="m_{c}", meaning=msg("blocks of one request as the start-up check counts them")
    ),
    "counted_blocks_per_request": Symbol(latex="m_{c}", meaning=msg("blocks of one request, by their bytes")),
    "counted_typical_blocks": Symbol(
        latex="m_{c}'", meaning=msg("blocks of one shorter request, by their bytes")
    ),
    "typical_blocks": Symbol(latex="m'", meaning=msg("blocks of one shorter request")),
    "concurrency": Symbol(latex="C", meaning=msg("requests of full length at once")),
    "typical_concurrency": Symbol(latex="C'", meaning=msg("shorter requests at once")),
    "max_num_seqs": Symbol(latex="Q", meaning=msg("most sequences in one step")),
    "running": Symbol(latex="Z", meaning=msg("shorter requests that really run at once")),
    "needed": Symbol(latex="r", meaning=msg("one request of full length")),
    "spare": Symbol(latex="V", meaning=msg("left beyond the first request")),
    "wanted_blocks": Symbol(latex="n_{Q}", meaning=msg("blocks if every sequence grew to full length")),
}


def symbol_of(quantity: Quantity, parent: str) -> Symbol:
    """The letter of an input of `parent`; what has none stands under its own name.

    Example:
        >>> from kvcore.quantity import Unit
        >>> symbol_of(Quantity(name="layers", value=2, unit=Unit.BYTES), "activations").latex
        'A_{l}'
        >>> symbol_of(Quantity(name="odd_one", value=2), "weights").latex
        '\\\\mathit{odd\\\\_one}'
    """
    found = SYMBOLS.get(f"{parent}.{quantity.name}") or SYMBOLS.get(quantity.name)
    if found is not None:
        return found
    name, _, number = quantity.name.rpartition("_")
    found = SYMBOLS.get(name)
    if found is not None and number.isdecimal():
        return Symbol(latex=_indexed(found.latex, number), meaning=found.meaning, number=number)
    return Symbol(latex=rf"\mathit{{{escaped(quantity.name)}}}", meaning=quantity.name)


def _indexed(latex: str, number: str) -> str:
    """The letter with a number in its index, behind what stands there."""
    return f"{latex[:-1]},{number}}}" if latex.endswith("}") else f"{latex}_{{{number}}}"


def escaped(text: str) -> str:
    """Letters, digits and a few signs for LaTeX; anything else is dropped.

    Example:
        >>> escaped("--max_len $x$")
        '--max\\\\_len x'
    """
    kept = "".join(sign for sign in text if sign.isascii() and (sign.isalnum() or sign in " -_.,"))
    return kept.replace("_", r"\_")
