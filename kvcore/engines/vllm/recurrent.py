"""Flags about recurrent states: which states are cached, and in which dtype."""

from __future__ import annotations

from typing import Final, assert_never

from kvcore.base.errors import EngineRefusalError, Notice, notice
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import MambaModes
from kvcore.engines.vllm.start import Start
from kvcore.scenario import AUTO

SNAPSHOTTING_KINDS: Final = frozenset({"mamba1", "mamba2"})
"""Recurrent layers whose every block may be cached. Source: vllm/model_executor/models/interfaces.py:
SupportsMambaPrefixCaching (0.19.0)."""

HOPPER: Final = 90
BLACKWELL_FAMILIES: Final = (10, 12)
KDA_FAMILIES: Final = (9, *BLACKWELL_FAMILIES)
KDA_EXPORT_TOKENS: Final = 16
"""Source: vllm/model_executor/layers/mamba/kda_checkpoint.py:kda_prefill_checkpoint_alignment (0.32.0, 0.33.0)."""
BLACKWELL_HEAD_SIZE: Final = 128
"""Keys of the heads that FlashInfer's kernel takes there, with CUDA 13, which the release is built with."""

KDA_DTYPES: Final = frozenset({AUTO, "float32", "bfloat16"})
"""Source: vllm/model_executor/layers/mamba/mamba_utils.py:kda_state_dtype (0.30.0, 0.33.0)."""


def mamba_cache_mode(
    asked: str | None, kinds: frozenset[str], rule: MambaModes, prefix_caching: bool, speculates: bool
) -> str:
    """none, align or all: which states of layers of `kinds` are cached, by `rule` of Switches.mamba_cache_mode.

    Without prefix caching none. With it as asked, but for `all` where a model cannot, and `none`, which is the flag's
    default and leaves the choice to the engine.

    Source: vllm/model_executor/models/config.py:MambaModelConfig (0.11.1 to 0.33.0).

    Example:
        >>> mamba_cache_mode(None, frozenset({"mamba2"}), MambaModes.ALL_OR_ALIGN, True, False)
        'all'
        >>> mamba_cache_mode("all", frozenset({"gdn_attention"}), MambaModes.ALL_OR_ALIGN, True, False)
        'align'
    """
    if not kinds or not prefix_caching:
        return "none"
    keeps_all = kinds <= SNAPSHOTTING_KINDS
    if asked in ("all", "align"):
        return "all" if asked == "all" and keeps_all else "align"
    match rule:
        case MambaModes.NONE:
            return "none"
        case MambaModes.ALIGN:
            return "align"
        case MambaModes.ALL_OR_NONE:
            return "all" if keeps_all else "none"
        case MambaModes.ALL_OR_ALIGN:
            return "all" if keeps_all else "align"
        case MambaModes.ALL_UNLESS_SPECULATIVE:
            return "all" if keeps_all and not speculates else "align"
        case other:
            assert_never(other)


def state_dtypes(start: Start, dtype: str) -> tuple[str, str]:
    """Dtypes of convolution rows and of the states themselves; "" for states leaves them to the model's config.

    Raises EngineRefusalError `state-dtype-unsupported` for a dtype that the release's kernels do not take.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py:MambaStateDtypeCalculator (0.10.1 to 0.33.0).
    """
    switches, kinds = start.switches, start.traits.recurrent
    rows, states = start.scenario.mamba_cache_dtype, start.scenario.mamba_ssm_cache_dtype
    if not kinds & switches.ssm_dtype_kinds:
        states = AUTO
    refused = kinds & switches.no_float32_states
    if refused and "float32" in (rows, states):
        field = "mamba_cache_dtype" if rows == "float32" else "mamba_ssm_cache_dtype"
        raise _unsupported(field, "float32", min(refused))
    if "kda" in kinds and states not in KDA_DTYPES:
        raise _unsupported("mamba_ssm_cache_dtype", states, "kda")
    row_dtype = dtype if rows == AUTO else rows
    if states == AUTO and "mamba2" in kinds and not switches.config_state_dtype:
        states = row_dtype
    return row_dtype, "" if states == AUTO else states


def _unsupported(field: str, value: str, kind: str) -> EngineRefusalError:
    return EngineRefusalError("state-dtype-unsupported", field=field, value=value, kind=kind)


def check_state_flags(
    start: Start, *, mode: str, prefix_caching: bool, chunked: bool, speculates: bool, max_model_len: int
) -> None:
    """Raises EngineRefusalError for flags that the engine does not take together.

    Source: vllm/model_executor/models/config.py:MambaModelConfig (0.15.1, 0.16.0, 0.33.0), vllm/config/vllm.py:
    VllmConfig.validate_mamba_block_size (0.11.1, 0.33.0).
    """
    block = start.scenario.mamba_block_size
    if block is not None and not prefix_caching and block != max_model_len:
        raise EngineRefusalError("mamba-block-without-prefix-caching", field="mamba_block_size", value=block)
    if mode == "align" and not chunked:
        raise EngineRefusalError("align-without-chunked-prefill", field="enable_chunked_prefill", value=False)
    if mode == "align" and speculates and not start.switches.align_speculates:
        raise EngineRefusalError("align-with-speculation", field="speculative_config", value=mode)


def state_export_tokens(start: Start, mode: str) -> int:
    """How far apart states that a prefill exports may lie; 0 unless FlashInfer's kernel, or FlashKDA's, runs every
    recurrent layer.

    Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:_resolve_gdn_prefill_backend,
    vllm/model_executor/layers/mamba/abstract.py:get_mamba_prefill_checkpoint_alignment (0.33.0),
    vllm/models/glm5next/common/kda.py:_resolve_kda_prefill_backend (0.30.0, 0.33.0).
    """
    sizes, card = start.traits.exported_head_sizes, start.card
    if mode != "align" or card.vendor is not Vendor.NVIDIA or not sizes or 0 in sizes:
        return 0
    if start.traits.recurrent == {"kda"}:
        runs = sizes == {BLACKWELL_HEAD_SIZE} and card.number // 10 in KDA_FAMILIES
        return KDA_EXPORT_TOKENS if runs else 0
    on_blackwell = card.number // 10 in BLACKWELL_FAMILIES and sizes == {BLACKWELL_HEAD_SIZE}
    return start.switches.gdn_checkpoint_tokens if card.number == HOPPER or on_blackwell else 0


def check_aligned_block(resolved: Resolved) -> None:
    """Raises EngineRefusalError `align-block-above-batch` where a block has to fit a batch and does not.

    Source: vllm/config/vllm.py:VllmConfig.validate_block_size (0.17.1 to 0.26.0).
    """
    tokens = resolved.max_num_batched_tokens
    if resolved.mamba_cache_mode != "align" or resolved.block_size <= tokens:
        return
    if resolved.engine.switches(resolved.version).align_block_fits_batch:
        raise EngineRefusalError(
            "align-block-above-batch", "max_num_batched_tokens", tokens, block=resolved.block_size
        )


def state_notices(start: Start, mode: str) -> tuple[Notice, ...]:
    """`mamba-cache-mode-not-kept` where another mode applies than the one asked for; `every-state-cached` where the
    engine chose to keep a state per block."""
    asked = start.scenario.mamba_cache_mode
    if not start.traits.recurrent:
        return ()
    if asked is not None and asked != mode:
        return (notice("mamba-cache-mode-not-kept", "mamba_cache_mode", asked=asked, used=mode),)
    if asked is None and mode == "all":
        return (notice("every-state-cached", "mamba_cache_mode"),)
    return ()
