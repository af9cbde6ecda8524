"""The profile run of vllm-ascend where it differs: rows of experts, residual streams, masks."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvcore.base.units import ceil_div
from kvcore.engine.overheads import Text
from kvcore.engine.protocol import Setting
from kvcore.engine.records import TakenLater
from kvcore.engines.vllm_ascend.communicators import NpuRank
from kvcore.memory.weights import expert_slices
from kvcore.tables import Amount, ReleaseRange, Source

FLOAT32_BYTES: Final = 4
EXCHANGED_COPIES: Final = 3
"""Copies of the rows that ranks send each other: what the experts made, the same in the senders' order, and what
comes back.

Source: vllm_ascend/ops/fused_moe/token_dispatcher.py:TokenDispatcherWithAll2AllV.token_combine, moe_comm_method.py:
MoECommMethod.fused_experts (0.11.0, 0.13.0, 0.18.0, 0.23.0), which keeps the first until it returns.
"""
UNQUANTIZED_COPIES: Final = 4
"""In 16 bits the rows that were received are kept as well: `dispose_tensor` is for quantized ones."""


def own_tokens(rank: NpuRank) -> int:
    """Tokens of a step that stay on one rank between the layers: cut over the ranks with FlashComm."""
    batch = rank.setting.resolved.max_num_batched_tokens
    return ceil_div(batch, rank.setting.parallel.tensor_parallel_size) if rank.cuts_tokens else batch


def routed_bytes(rank: NpuRank) -> int:
    """Rows of tokens and experts, in bytes.

    Where ranks gather all tokens, those of every data parallel rank: rows × (2 hidden + 3 expert / ranks) elements,
    what the experts get and give, and in 16 bits what they make of it; 8-bit experts make it in pieces. Where ranks
    send each other what the experts need: rows × 3 hidden, in 16 bits 4. The profile run spreads tokens evenly.

    Source: vllm_ascend/ops/fused_moe/moe_mlp.py:unquant_apply_mlp, quant_apply_mlp, token_dispatcher.py (0.23.0).
    """
    setting = rank.setting
    moe, parallel = setting.architecture.moe, setting.parallel
    if moe is None:
        return 0
    batch, hidden, ranks = (
        setting.resolved.max_num_batched_tokens,
        setting.architecture.hidden_size,
        parallel.tensor_parallel_size,
    )
    if rank.exchanges_tokens:
        copies = EXCHANGED_COPIES if is_quantized(setting) else UNQUANTIZED_COPIES
        return ceil_div(batch, ranks) * moe.top_k * copies * hidden * setting.element_bytes
    tokens = batch * parallel.data_parallel_size
    gathered = tokens * hidden if parallel.data_parallel_size > 1 else 0
    inner = 0 if is_quantized(setting) else 3 * moe.moe_intermediate_size
    inner //= expert_slices(parallel)
    return (tokens * moe.top_k * (2 * hidden + inner) + gathered) * setting.element_bytes


def is_quantized(setting: Setting) -> bool:
    """Whether the weights are stored in fewer than 16 bits."""
    return not setting.storage.startswith("unquantized")


class StreamPeak(NamedTuple):
    """Bytes of the profile run of a model with several residual streams; 0 for others."""

    value: int
    least: int
    """The same where the draft's mode is not stated: the case that takes least."""


def stream_peak(rank: NpuRank, experts: int) -> StreamPeak:
    """The largest of: a layer while its experts run, the same of the draft, the head that joins the streams in float32
    with those of the whole batch behind it.

    Source: vllm_ascend/models/deepseek_v4.py:DeepseekV4Model.forward, hc_head (0.20.2rc1, 0.23.0).
    """
    setting = rank.setting
    architecture, element = setting.architecture, setting.element_bytes
    if architecture.residual_streams == 1:
        return StreamPeak(0, 0)
    tokens, batch, hidden = (
        own_tokens(rank),
        setting.resolved.max_num_batched_tokens,
        architecture.hidden_size,
    )
    streams = architecture.residual_streams * hidden
    joined = tokens * streams * (2 * element + 2 * FLOAT32_BYTES) + tokens * hidden * FLOAT32_BYTES
    if tokens < batch:
        joined += batch * streams * element
    is_eager = setting.resolved.enforce_eager
    written = (
        tokens
        * layer_elements_alive(architecture.residual_streams, is_compiled=not is_eager)
        * hidden
        * element
    )
    main = max(joined, written + router_bytes(rank) + experts)
    if not setting.resolved.speculative_method:
        return StreamPeak(main, main)
    draft, *others = (
        max(main, draft_bytes(rank, is_compiled=compiled) + router_bytes(rank) + experts)
        for compiled in draft_modes(rank)
    )
    return StreamPeak(draft, min(draft, *others) if others else draft)


def layer_elements_alive(streams: int, *, is_compiled: bool) -> int:
    """Vectors of the hidden size that a layer keeps for each of its tokens while its experts run, theirs apart.

    A compiled one keeps its residual streams, what the experts get, and that in float32 for the router. As it is
    written, also what it got and what the layer before it got, and what its attention got.

    Source: vllm_ascend/models/deepseek_v4.py:DeepseekV2DecoderLayer.forward, DeepseekV4Model.forward, ops/fused_moe/
    fused_moe.py:AscendFusedMoE.shared_forward_impl (0.20.2rc1, 0.23.0).

    Example:
        >>> layer_elements_alive(4, is_compiled=True), layer_elements_alive(4, is_compiled=False)
        (7, 16)
    """
    compiled = streams + 1 + 2
    return compiled if is_compiled else compiled + 2 * streams + 1


def draft_bytes(rank: NpuRank, *, is_compiled: bool) -> int:
    """Memory of the runs of a draft that is itself such a layer: the model's answer, of the whole batch with FlashComm;
    with FlashComm the rank's share of the streams that the draft gets; and as it is written its embedding, twice, the
    normed streams, those that go into its layer, and the layer.

    Source: vllm_ascend/spec_decode/llm_base_proposer.py:_run_merged_draft, models/deepseek_v4_mtp.py:
    DeepSeekMultiTokenPredictorLayer.forward (0.20.2rc1, 0.23.0).
    """
    setting = rank.setting
    tokens, batch = own_tokens(rank), setting.resolved.max_num_batched_tokens
    streams = setting.architecture.residual_streams
    vectors = layer_elements_alive(streams, is_compiled=True) + (0 if is_compiled else 2 + 2 * streams + 1)
    answer = batch if rank.cuts_tokens else tokens
    alive = tokens * (vectors + (streams if rank.cuts_tokens else 0)) + answer
    return alive * setting.architecture.hidden_size * setting.element_bytes


def draft_modes(rank: NpuRank) -> tuple[bool, ...]:
    """Whether the draft is compiled, the likelier first.

    As it is written where the model is, and with FlashComm where `enforce_eager` of `--speculative-config` says so. All
    launch commands that vllm-ascend documents for DeepSeek-V4 say it, so that it is the likelier where nobody does.

    Source: vllm_ascend/spec_decode/llm_base_proposer.py:_maybe_eager_context (0.20.2rc1, 0.23.0, 0.25.1rc1),
    docs/source/tutorials/models/DeepSeek-V4-Flash.md, DeepSeek-V4-Pro.md (0.23.0rc1).
    """
    if rank.setting.resolved.enforce_eager:
        return (False,)
    if not rank.cuts_tokens:
        return (True,)
    speculative = rank.setting.scenario.speculative_config
    said = None if speculative is None else speculative.enforce_eager
    return (False, True) if said is None else (not said,)


def router_bytes(rank: NpuRank) -> int:
    """Float32 logits of the experts, of the tokens of a rank."""
    moe = rank.setting.architecture.moe
    return 0 if moe is None else own_tokens(rank) * moe.num_experts * FLOAT32_BYTES


def kept_stream_bytes(batch_tokens: int, streams: int, hidden_size: int, element_bytes: int) -> int:
    """The streams of a whole batch that a model keeps for its draft, allotted while it is built.

    Source: vllm_ascend/models/deepseek_v4.py:DeepseekV4Model.__init__ (0.23.0).

    Example:
        >>> kept_stream_bytes(23_552, 4, 4096, 2) / 2**30
        0.71875
    """
    return batch_tokens * streams * hidden_size * element_bytes if streams > 1 else 0


class Mask(ReleaseRange, frozen=True, kw_only=True):
    """An attention mask of max_model_len × max_model_len, made after the KV cache; bytes for each pair of tokens."""

    source: Source
    card: Text
    """A part of the names of the cards."""
    bytes_per_pair: Amount
    least: Amount
    most: Amount


def mask_taken(masks: tuple[Mask, ...], setting: Setting) -> TakenLater | None:
    """The attention mask of max_model_len × max_model_len while it is made; None where none is.

    On 310P kernels want one: in float16, once more in the card's own format, and once while it is cast. It is made with
    the first graph or prompt.
    """
    version, card = setting.resolved.version, setting.card_label
    row = next((row for row in masks if row.covers(version) and row.card in card), None)
    if row is None or not setting.architecture.num_attention_heads:
        return None
    pairs = setting.resolved.max_model_len**2
    sizes = (rate * pairs for rate in (row.bytes_per_pair, row.least, row.most))
    return TakenLater("mask", row.source, *sizes)
