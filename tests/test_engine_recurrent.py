"""Flags about recurrent states: which holds, which the engine refuses, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.advice.fixes import fixes
from kvcore.base.errors import EngineRefusalError
from kvcore.base.words import Language, words
from kvcore.cache.kv_formats import state_tensor_bytes
from kvcore.charts.summary import state_mode_text
from kvcore.controls.offers import keeps_recurrent_states, state_choices
from kvcore.deploy.launch import launch_arguments
from kvcore.engines.vllm.recurrent import mamba_cache_mode
from kvcore.model.caches import RecurrentState, StateShape
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request

NEMOTRON = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
NEMOTRON_NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
QWEN = "Qwen/Qwen3.6-27B"
QWEN_NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
KIMI = "moonshotai/Kimi-K3"
MINIMAX = "MiniMaxAI/MiniMax-M1-80k"


def start(model: str = NEMOTRON, version: str = "0.27.1", **flags: Any) -> Plan:
    request = {
        "model": model,
        "accelerator": "H200-141GB",
        "engine_version": version,
        "max_model_len": 65_536,
        "max_num_batched_tokens": 8192,
        "kv_cache_dtype": "bfloat16",
        "enable_prefix_caching": True,
        "measured": {"available_kv_gib": 20},
        **flags,
    }
    return plan(scenario_from_request(request))


@pytest.mark.parametrize(
    ("asked", "kinds", "rule", "mode"),
    [
        ("all", {"mamba2"}, "all-or-align", "all"),
        ("all", {"mamba2"}, "align", "all"),
        ("align", {"mamba2"}, "all-or-align", "align"),
        ("none", {"mamba2"}, "all-or-align", "all"),
        (None, {"mamba2"}, "align", "align"),
        ("all", {"gdn_attention"}, "all-or-align", "align"),
        ("all", {"mamba2", "short_conv"}, "all-or-align", "align"),
        ("all", set(), "all-or-align", "none"),
    ],
)
def test_the_asked_mode_holds_where_it_can(asked: str | None, kinds: set[str], rule: str, mode: str) -> None:
    """Source: vllm/model_executor/models/config.py:MambaModelConfig (0.15.1 to 0.33.0)."""
    assert mamba_cache_mode(asked, frozenset(kinds), rule, True, False) == mode
    assert mamba_cache_mode(asked, frozenset(kinds), rule, False, False) == "none"


def test_an_asked_mode_stands_above_what_speculation_would_choose() -> None:
    kinds = frozenset({"mamba2"})
    assert mamba_cache_mode(None, kinds, "all-unless-speculative", True, True) == "align"
    assert mamba_cache_mode("all", kinds, "all-unless-speculative", True, True) == "all"


@pytest.mark.parametrize(
    ("model", "flags", "codes"),
    [
        (NEMOTRON, {"mamba_cache_mode": "align"}, []),
        (NEMOTRON, {}, ["every-state-cached"]),
        (NEMOTRON, {"mamba_cache_mode": "all"}, []),
        (
            NEMOTRON,
            {"mamba_cache_mode": "all", "enable_prefix_caching": False},
            ["mamba-cache-mode-not-kept"],
        ),
        (QWEN, {"mamba_cache_mode": "all"}, ["mamba-cache-mode-not-kept"]),
        (QWEN, {"mamba_cache_mode": "none"}, ["mamba-cache-mode-not-kept"]),
        (LLAMA, {"mamba_cache_mode": "all"}, []),
    ],
)
def test_a_mode_that_does_not_hold_is_named(model: str, flags: dict[str, Any], codes: list[str]) -> None:
    found = [notice.code for notice in start(model, **flags).notices if notice.field == "mamba_cache_mode"]
    assert found == codes


@pytest.mark.parametrize(
    ("model", "version", "flags", "code"),
    [
        (NEMOTRON, "0.27.1", {"mamba_block_size": 4096, "enable_prefix_caching": False},
         "mamba-block-without-prefix-caching"),
        (QWEN, "0.27.1", {"enable_chunked_prefill": False, "max_num_batched_tokens": 65_536},
         "align-without-chunked-prefill"),
        (NEMOTRON_NANO, "0.16.0", {"mamba_cache_mode": "align", "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 2}}, "align-with-speculation"),
        (NEMOTRON, "0.26.0", {"mamba_cache_mode": "align", "max_num_batched_tokens": 2048},
         "align-block-above-batch"),
        (KIMI, "0.30.0", {"mamba_ssm_cache_dtype": "float16"}, "state-dtype-unsupported"),
        (MINIMAX, "0.19.0", {"mamba_cache_dtype": "float32", "tensor_parallel_size": 8}, "state-dtype-unsupported"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses(model: str, version: str, flags: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineRefusalError) as caught:
        start(model, version, **flags)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("model", "version", "flags"),
    [
        (NEMOTRON, "0.27.1", {"mamba_block_size": 65_536, "enable_prefix_caching": False}),
        (NEMOTRON, "0.17.0", {"mamba_cache_mode": "align", "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 2}}),
        (NEMOTRON, "0.27.1", {"mamba_cache_mode": "align", "max_num_batched_tokens": 2048}),
        (KIMI, "0.29.0", {"mamba_ssm_cache_dtype": "float16"}),
        (MINIMAX, "0.20.2", {"mamba_cache_dtype": "float32", "tensor_parallel_size": 8}),
    ],
)  # fmt: skip
def test_what_the_engine_takes_beside_it(model: str, version: str, flags: dict[str, Any]) -> None:
    assert start(model, version, **flags).cache is not None


MAMBA = RecurrentState(
    kind="mamba2",
    heads=8,
    shapes=(
        StateShape(sharded=8 * 3, replicated=1),
        StateShape(sharded=8, replicated=64, dtype="float32", is_ssm=True),
    ),
)


@pytest.mark.parametrize(
    ("rows", "states", "size"),
    [
        ("bfloat16", "", 24 * 2 + 512 * 4),
        ("bfloat16", "float16", 24 * 2 + 512 * 2),
        ("float32", "", 24 * 4 + 512 * 4),
        ("float32", "bfloat16", 24 * 4 + 512 * 2),
    ],
)
def test_a_flag_stands_above_the_dtype_of_the_config(rows: str, states: str, size: int) -> None:
    assert sum(state_tensor_bytes(MAMBA, 1, rows, 0, states)) == size


@pytest.mark.parametrize(
    ("model", "version", "dtypes"),
    [
        (NEMOTRON, "0.27.1", ("bfloat16", "float16")),
        (QWEN_NEXT, "0.16.0", ("bfloat16", "")),
        (QWEN, "0.17.0", ("bfloat16", "float16")),
        (KIMI, "0.29.0", ("bfloat16", "")),
        (LLAMA, "0.27.1", ("bfloat16", "")),
    ],
)
def test_which_layers_take_a_dtype_for_states(model: str, version: str, dtypes: tuple[str, str]) -> None:
    """Source: vllm/model_executor/layers/mamba/mamba_utils.py (0.16.0, 0.17.1, 0.29.0, 0.30.0)."""
    resolved = start(model, version, mamba_ssm_cache_dtype="float16").resolved
    assert (resolved.mamba_cache_dtype, resolved.mamba_ssm_cache_dtype) == dtypes


def test_nemotron_before_0_13_keeps_states_in_the_dtype_of_the_model() -> None:
    """Source: vllm/model_executor/models/config.py:NemotronHForCausalLMConfig (0.12.0 without, 0.13.0 with)."""
    before, after = (start(NEMOTRON_NANO, version).resolved for version in ("0.12.0", "0.13.0"))
    assert (before.mamba_ssm_cache_dtype, after.mamba_ssm_cache_dtype) == ("bfloat16", "")


@pytest.mark.parametrize(("block", "size"), [(None, 2176), (512, 2560), (4096, 4096)])
def test_blocks_of_mode_all_are_multiples_of_the_asked_one(block: int | None, size: int) -> None:
    """2084 tokens hold a state; the kernel's chunk is 128 tokens."""
    assert start(mamba_block_size=block).resolved.block_size == size


def test_states_without_attention_take_the_asked_block() -> None:
    planned = start("tiiuae/falcon-mamba-7b", "0.20.2", mamba_block_size=4096, max_model_len=8192)
    assert planned.cache is not None
    assert [(group.block_size, group.blocks_per_request) for group in planned.cache.groups] == [(4096, 2)]


def test_fewer_states_mend_a_hybrid_that_keeps_them_all() -> None:
    # Mode all: 5 × 31 blocks of 6 × 2176 KiB are 1.9 GiB; align: 32 + 4 × 2 blocks of 6 × 2096 KiB are 0.5 GiB.
    broken = start(max_num_seqs=64, measured={"available_kv_gib": 1})
    assert broken.verdict is Verdict.CONTEXT_TOO_LONG
    found = {fix.field: fix for fix in fixes(broken)}
    assert next(iter(found)) == "mamba_cache_mode"
    assert found["mamba_cache_mode"].value == "align"
    assert found["mamba_cache_mode"].plan.resolved.mamba_cache_mode == "align"
    assert found["enable_prefix_caching"].value is False
    assert found["enable_prefix_caching"].plan.resolved.mamba_cache_mode == "none"


def test_fewer_states_alone_do_not_mend_a_start_with_fewer_blocks_than_sequences() -> None:
    """Source: vllm/config/compilation.py:CompilationConfig.resolve_cudagraph_mode_and_sizes (0.32.0)."""
    broken = start(measured={"available_kv_gib": 1})
    assert (broken.verdict, broken.resolved.max_num_seqs) == (Verdict.CONTEXT_TOO_LONG, 1024)
    assert "mamba_cache_mode" not in {fix.field for fix in fixes(broken)}
    assert start(mamba_cache_mode="align", measured={"available_kv_gib": 1}).verdict is Verdict.NO_KV_MEMORY


def test_models_without_states_are_offered_neither() -> None:
    broken = start(LLAMA, measured={"available_kv_gib": 1})
    assert broken.verdict is Verdict.CONTEXT_TOO_LONG
    assert not {"mamba_cache_mode", "enable_prefix_caching"} & {fix.field for fix in fixes(broken)}


def test_the_launch_command_has_them_only_where_set() -> None:
    flags = {"mamba_cache_mode": "align", "mamba_block_size": 8192, "mamba_cache_dtype": "float32",
             "mamba_ssm_cache_dtype": "float16"}  # fmt: skip
    given = launch_arguments(start(**flags))
    assert {
        name.replace("-", "_"): value for name, value in given.items() if name.startswith("mamba")
    } == flags
    assert not any(name.startswith("mamba") for name in launch_arguments(start()))


def test_the_sidebar_offers_what_the_release_takes() -> None:
    new, old = (start(NEMOTRON_NANO, version).scenario for version in ("0.33.0", "0.12.0"))
    assert state_choices("mamba_cache_mode", new) == ("auto", "align")
    assert state_choices("mamba_cache_mode", old) == ("auto",)
    assert state_choices("mamba_ssm_cache_dtype", new) == ("auto", "float32", "float16", "bfloat16")
    assert state_choices("mamba_ssm_cache_dtype", old) == ("auto", "float32")
    assert keeps_recurrent_states(new)
    assert not keeps_recurrent_states(start(LLAMA).scenario)


def test_the_mode_in_force_is_said() -> None:
    t = words(Language.ENGLISH)
    assert state_mode_text(start(), t).startswith(
        "Mamba cache mode all: the recurrent state is kept every 2,176"
    )
    assert state_mode_text(start(mamba_cache_mode="align"), t).startswith("Mamba cache mode align: ")
    assert state_mode_text(start(enable_prefix_caching=False), t).startswith("Mamba cache mode none: ")
    assert state_mode_text(start(LLAMA), t) == ""


@pytest.mark.parametrize(
    ("model", "version", "flags", "tokens"),
    [
        (QWEN_NEXT, "0.32.0", {}, 0),
        (QWEN_NEXT, "0.33.0", {}, 64),
        (QWEN_NEXT, "0.33.0", {"accelerator": "B200"}, 64),
        (QWEN_NEXT, "0.33.0", {"accelerator": "A100-80GB"}, 0),
        (QWEN_NEXT, "0.33.0", {"accelerator": "MI300X"}, 0),
        (QWEN_NEXT, "0.33.0", {"enable_prefix_caching": False}, 0),
        (NEMOTRON_NANO, "0.33.0", {}, 0),
        (LLAMA, "0.33.0", {}, 0),
    ],
)
def test_delta_nets_that_hand_out_states_inside_a_prefill(
    model: str, version: str, flags: dict[str, Any], tokens: int
) -> None:
    """Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:_resolve_gdn_prefill_backend (0.33.0)."""
    assert start(model, version, **flags).resolved.state_export_tokens == tokens


def test_a_state_handed_out_takes_a_block_and_wider_blocks() -> None:
    """Qwen3-Next, TP 4: a state of 8 × 128 × 128 × 2 bytes and 3 × 2048 × 2 of rows next to 1024 bytes a token:
    268 tokens, so blocks of 272 by 16 and of 320 by 64. The figures of 0.33.0 are its own planner's (make parity)."""
    asked = {"tensor_parallel_size": 4, "max_model_len": 262_144, "measured": {"available_kv_gib": 40}}
    before, after = (start(QWEN_NEXT, version, **asked) for version in ("0.32.0", "0.33.0"))
    assert [one.resolved.block_size for one in (before, after)] == [272, 320]
    assert (after.cache.num_blocks, after.cache.tokens) == (10_922, 3_453_723)
    assert after.cache.max_concurrency == pytest.approx(13.174909529553679)
