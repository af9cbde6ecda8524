"""What the profile run of vllm-ascend takes where it differs: rows of experts, residual streams."""

from __future__ import annotations

from typing import Final

from kvcore.memory.communicators import exchanges_tokens, is_sequence_parallel
from kvcore.memory.setting import Setting
from kvcore.memory.weights import expert_slices
from kvcore.units import ceil_div

FLOAT32_BYTES: Final = 4
STREAMS_ALIVE: Final = 3
"""What a layer got, what the one before it got, and the copy that its experts are added to.

Source: vllm_ascend/models/deepseek_v4.py:DeepseekV2DecoderLayer.forward, DeepseekV4Model.forward (0.23.0).
"""


def own_tokens(setting: Setting) -> int:
    """Tokens of a step that stay on one rank between the layers: cut over the ranks with FlashComm."""
    batch = setting.resolved.max_num_batched_tokens
    is_cut = is_sequence_parallel(setting)
    return ceil_div(batch, setting.parallel.tensor_parallel_size) if is_cut else batch


def routed_bytes(setting: Setting) -> int:
    """Rows of tokens and experts: the tokens of a rank, or where ranks gather all, of every data parallel rank.

    rows × (2 hidden + 3 expert / ranks) elements: what the experts get and give, and in 16 bits what they make of it;
    8-bit experts make it in pieces. The profile run spreads tokens evenly.

    Source: vllm_ascend/ops/fused_moe/moe_mlp.py:unquant_apply_mlp, quant_apply_mlp, token_dispatcher.py (0.23.0).
    """
    moe, parallel = setting.architecture.moe, setting.parallel
    if moe is None:
        return 0
    batch, hidden, ranks = (
        setting.resolved.max_num_batched_tokens,
        setting.architecture.hidden_size,
        parallel.tensor_parallel_size,
    )
    tokens = batch * parallel.data_parallel_size
    gathered = tokens * hidden if parallel.data_parallel_size > 1 else 0
    if exchanges_tokens(setting):
        tokens, gathered = ceil_div(batch, ranks), 0
    inner = 0 if is_quantized(setting) else 3 * moe.moe_intermediate_size
    inner //= expert_slices(parallel)
    return (tokens * moe.top_k * (2 * hidden + inner) + gathered) * setting.element_bytes


def is_quantized(setting: Setting) -> bool:
    """Whether the weights are stored in fewer than 16 bits."""
    return not setting.storage.startswith("unquantized")


def stream_bytes(setting: Setting, experts: int) -> int:
    """The peak of a model with several residual streams; 0 for others.

    max(streams while experts run, the head that joins the streams in float32, with those of the whole batch behind it)

    Source: vllm_ascend/models/deepseek_v4.py:DeepseekV4Model.forward, hc_head (0.23.0).
    """
    architecture, element = setting.architecture, setting.element_bytes
    if architecture.residual_streams == 1:
        return 0
    tokens, hidden = own_tokens(setting), architecture.hidden_size
    streams = architecture.residual_streams * hidden
    inside = tokens * (STREAMS_ALIVE * streams + 2 * hidden) * element + experts
    joined = tokens * streams * (2 * element + 2 * FLOAT32_BYTES) + tokens * hidden * FLOAT32_BYTES
    batch = setting.resolved.max_num_batched_tokens
    if tokens < batch:
        joined += batch * streams * element
    return max(inside, joined)


def kept_stream_bytes(batch_tokens: int, streams: int, hidden_size: int, element_bytes: int) -> int:
    """The streams of a whole batch that a model keeps for its draft, allotted while it is built.

    Source: vllm_ascend/models/deepseek_v4.py:DeepseekV4Model.__init__ (0.23.0).

    Example:
        >>> kept_stream_bytes(23_552, 4, 4096, 2) / 2**30
        0.71875
    """
    return batch_tokens * streams * hidden_size * element_bytes if streams > 1 else 0
