"""What the framework takes inside the budget and the system outside: printed figures, links, sizes from source."""

from typing import Any

import pytest

from kvcore.base.units import GIB, gib
from kvcore.engine.setting import links_of
from kvcore.memory.framework import FRAMEWORK, non_torch_bytes, runner_buffer_bytes, system_bytes
from tests.engine_examples import (
    ASCEND,
    GEMMA3_12B,
    H100,
    L40S,
    LLAMA_8B,
    QWEN3_14B,
    QWEN3_30B_A3B,
    RTX_3090,
    setting_for,
)


@pytest.mark.parametrize(
    ("fields", "printed_gib"),
    [
        ({"engine_version": "0.16.0"}, 0.13),
        ({"engine_version": "0.19.0"}, 0.25),
        ({"engine_version": "0.19.0", "tensor_parallel_size": 2}, 2.06),
        ({"engine_version": "0.19.0", "tensor_parallel_size": 4}, 2.13),
        ({"config": QWEN3_30B_A3B, "engine_version": "0.19.0", "tensor_parallel_size": 4}, 2.17),
        ({"engine_version": "0.10.2", "tensor_parallel_size": 4}, 1.84),
        ({"engine_version": "0.10.2", "tensor_parallel_size": 2, "accelerator": "H200-141GB"}, 1.38),
        ({"engine_version": "0.11.0", "tensor_parallel_size": 2}, 0.55),
        ({"engine_version": "0.25.1", "tensor_parallel_size": 4}, 0.60),
        ({"engine_version": "0.26.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 0.95),
        ({"engine_version": "0.10.2", "tensor_parallel_size": 8, "accelerator": L40S}, 0.21),
        ({"engine_version": "0.10.2", "tensor_parallel_size": 2, "accelerator": "A40-48GB"}, 0.32),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 2, "accelerator": "RTX-5090-32GB",
          "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}, 0.36),
        ({"engine_version": "0.8.5", "tensor_parallel_size": 4, "accelerator": L40S,
          "env": {"VLLM_USE_V1": "0"}}, 0.2),
    ],
)  # fmt: skip
def test_printed_non_torch_memory_lies_inside_the_interval(
    fields: dict[str, Any], printed_gib: float
) -> None:
    """vLLM's own "non_torch_memory takes" and "non-torch forward increase", of starts on known links."""
    link = "nvlink" if fields.get("accelerator", H100) in (H100, "H200-141GB", "B300-288GB") else "pcie"
    surroundings = {"link": link} if "tensor_parallel_size" in fields else {}
    quantity = non_torch_bytes(setting_for(**fields, surroundings=surroundings))
    assert quantity.interval is not None
    assert quantity.interval[0] <= printed_gib * GIB <= quantity.interval[1]
    assert gib(quantity.interval[1] - quantity.interval[0]) < 1.2


def test_free_memory_at_start_lies_inside_the_interval_of_the_system() -> None:
    """H100 with 79.19 GiB: 78.68 free on one card, 77.66 with tensor parallel size 2 (0.19.0)."""
    for ranks, free_gib in ((1, 78.68), (2, 77.66), (4, 77.64)):
        system = system_bytes(setting_for(engine_version="0.19.0", tensor_parallel_size=ranks))
        assert system.interval is not None
        assert system.interval[0] <= (H100["memory_gib"] - free_gib) * GIB <= system.interval[1]


def test_communicators_move_out_of_the_budget_with_0_11() -> None:
    before = setting_for(engine_version="0.10.2", tensor_parallel_size=2)
    after = setting_for(engine_version="0.11.0", tensor_parallel_size=2)
    assert gib(system_bytes(after).value - system_bytes(before).value) == pytest.approx(1.03, abs=0.001)


def test_the_context_counts_as_framework_in_the_first_v1_budget() -> None:
    absolute = setting_for(engine_version="0.8.5")
    assert system_bytes(absolute).value == 0
    assert non_torch_bytes(absolute).value > 0.5 * GIB


def test_the_v2_sampler_keeps_counters_for_every_request() -> None:
    """1,024 × 151,936 × 4 bytes are 593.5 MiB."""
    setting = setting_for(QWEN3_14B, engine_version="0.29.0")
    masks = 2 * 1024 * (151936 // 32) * 4
    assert runner_buffer_bytes(setting) == 1024 * 151936 * 4 + masks + 8192 * 24
    assert non_torch_bytes(setting).value > 1024 * 151936 * 4


def test_buffers_are_outside_the_budget_before_0_27() -> None:
    old, new = (setting_for(QWEN3_14B, engine_version=version) for version in ("0.22.0", "0.27.1"))
    assert system_bytes(old).value - system_bytes(new).value == runner_buffer_bytes(old)


def test_multimodal_batches_keep_their_embeddings() -> None:
    assert runner_buffer_bytes(setting_for(GEMMA3_12B, engine_version="0.19.0")) == 8192 * (24 + 3840 * 2)


@pytest.mark.parametrize(
    ("fields", "links"),
    [
        ({}, ("single",)),
        ({"accelerator": "GB10-128GB"}, ("unified",)),
        ({"surroundings": {"host": "unified"}}, ("unified",)),
        ({"tensor_parallel_size": 2}, ("nvlink", "pcie")),
        ({"tensor_parallel_size": 2, "accelerator": RTX_3090, "max_model_len": 1024}, ("pcie", "pcie-p2p")),
        ({"tensor_parallel_size": 2, "accelerator": "H100-NVL-94GB"}, ("pcie", "pcie-p2p")),
        ({"tensor_parallel_size": 2, "accelerator": "MI300X-192GB"}, ("nvlink",)),
        ({"tensor_parallel_size": 2, "accelerator": "GB10-128GB"}, ("hosts",)),
        ({"tensor_parallel_size": 16, "config": {**LLAMA_8B, "num_attention_heads": 64}}, ("hosts",)),
        ({"tensor_parallel_size": 2, "surroundings": {"link": "pcie"}}, ("pcie",)),
        ({"tensor_parallel_size": 2, "accelerator": "H100-NVL-94GB", "surroundings": {"link": "nvlink"}}, ("nvlink",)),
        ({"tensor_parallel_size": 2, "env": {"NCCL_P2P_DISABLE": "1"}}, ("pcie",)),
    ],
)  # fmt: skip
def test_cards_are_linked_as_they_are_built_unless_it_is_said(
    fields: dict[str, Any], links: tuple[str, ...]
) -> None:
    setting = setting_for(engine_version="0.19.0", **fields)
    assert setting.links == links == links_of(setting.scenario, setting.accelerator, setting.ranks)
    assert setting.link == links[0]


def test_an_unknown_link_spans_what_both_would_take() -> None:
    """H100 pods without P2P print 0.2 to 0.3 GiB, those on NVLink 2.1 (0.19.0, TP 2)."""
    unknown, nvlink, pcie = (
        non_torch_bytes(setting_for(engine_version="0.19.0", tensor_parallel_size=2, surroundings=said))
        for said in ({}, {"link": "nvlink"}, {"link": "pcie"})
    )
    assert unknown.value == nvlink.value > pcie.value
    assert unknown.interval
    assert nvlink.interval
    assert pcie.interval
    assert unknown.interval == (pcie.interval[0], nvlink.interval[1])
    assert unknown.interval[0] <= 0.3 * GIB < nvlink.interval[0]


def test_what_was_taken_before_the_start_is_the_systems() -> None:
    """0.63 GiB of a 3090; only the first V1 budget counts what other processes use."""
    for version, is_counted in (("0.19.0", False), ("0.8.5", True), ("0.28.0", False)):
        with_display, without = (
            setting_for(engine_version=version, surroundings=said) for said in ({"taken_gib": 0.63}, {})
        )
        inside = non_torch_bytes(with_display).value - non_torch_bytes(without).value
        outside = system_bytes(with_display).value - system_bytes(without).value
        assert (gib(inside), gib(outside)) == pytest.approx((0.63, 0) if is_counted else (0, 0.63), abs=1e-6)


def test_less_is_free_under_wsl() -> None:
    """23.99 GiB in all, 22.45 free at the start; 15.99 and 14.69."""
    system = system_bytes(setting_for(engine_version="0.19.0", surroundings={"host": "wsl"}))
    assert system.interval is not None
    assert system.interval[0] <= (15.99 - 14.69) * GIB < (23.99 - 22.45) * GIB <= system.interval[1]


def test_a_mixture_of_experts_has_a_communicator_more() -> None:
    """H100 TP 2, 0.19.0: 77.66 GiB are free at the start of Qwen2.5, 77.18 at that of gpt-oss."""
    dense, experts = (
        system_bytes(setting_for(config, engine_version="0.19.0", tensor_parallel_size=2))
        for config in (LLAMA_8B, QWEN3_30B_A3B)
    )
    assert gib(experts.value - dense.value) == pytest.approx(77.66 - 77.18, abs=0.05)


def test_every_row_suits_some_start() -> None:
    """The last row of each table asks for nothing."""
    tables = FRAMEWORK.load()
    for rows in (tables.non_torch, tables.collectives, tables.context, tables.communication):
        last = rows[-1]
        asked = (last.link, last.vendor, last.runner, last.capability, last.host, last.experts)
        assert asked == (None,) * 6
        assert last.ranks == 1


def test_ascend_has_figures_of_its_own() -> None:
    one = setting_for(engine="vllm-ascend", accelerator=ASCEND, engine_version="0.13.0")
    many = setting_for(
        engine="vllm-ascend", accelerator=ASCEND, engine_version="0.13.0", tensor_parallel_size=4
    )
    assert "everything on the device" in non_torch_bytes(one).source
    assert non_torch_bytes(many).value > non_torch_bytes(one).value
