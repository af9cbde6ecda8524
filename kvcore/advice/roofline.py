"""How many operations a token takes, and how many a card does: the other bound of a step besides its bandwidth."""

from __future__ import annotations

import math
from typing import Final

from kvcore.memory.weights import Rank, counted_layers
from kvcore.model import architecture as arch
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.planning import Plan

COMPUTES_IN_16_BITS: Final = frozenset({"awq", "gptq", "auto-round", "bitsandbytes", "gguf"})
"""Methods that store weights in fewer bits and multiply with 16.

Source: vllm/model_executor/layers/quantization/awq_marlin.py, gptq_marlin.py, bitsandbytes.py, gguf.py (0.32.0).
"""
COMPUTES_IN_FP8: Final = frozenset({"fp8"})
"""Source: vllm/model_executor/layers/quantization/fp8.py (0.32.0)."""
_TERA: Final = 1e12


def token_flops(plan: Plan) -> float:
    """Operations of one token in the matrices of one rank of the worst stage, at least.

    2 × elements, of the experts those that one token needs. Attention and the output layer are left out: the latter
    runs only for tokens that are sampled.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> dense = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}))
        >>> round(token_flops(dense) / 1e9, 1)
        13.9
    """
    parallel = plan.scenario.parallel
    rank = Rank(quantization=Quantization(), parallel=parallel, dtype_bytes=2)
    elements = 0.0
    for layer, _, times in counted_layers(plan.architecture, rank.quantization, parallel, plan.stage):
        elements += times * sum(_elements(rank, module) for module in layer.modules)
    return 2 * elements


def _elements(rank: Rank, module: arch.Module) -> float:
    if isinstance(module, arch.Experts):
        stored = sum(rank.tensor_bytes(module, module.name)) / rank.dtype_bytes
        return stored * module.top_k / module.num_experts
    if isinstance(module, arch.Linear):
        rank_in, rank_out = rank.linear_share(module)
        return rank_in * sum(rank_out)
    return 0.0


def peak_flops(plan: Plan) -> float:
    """Operations a second of the card, in the numbers that the model computes with; infinite where not known.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> dense = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}))
        >>> peak_flops(dense)
        989000000000000.0
    """
    card, method = plan.accelerator, plan.quantization.method
    if method == NOT_QUANTIZED or method in COMPUTES_IN_16_BITS:
        peak = card.dense_tflops
    else:
        peak = card.fp8_dense_tflops if method in COMPUTES_IN_FP8 else None
    return peak * _TERA if peak else math.inf
