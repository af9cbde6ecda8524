"""Memory outside torch: which figure holds where, and the buffers of the runner."""

import pytest

from kvcore.memory.framework import non_torch_bytes, runner_buffer_bytes, system_bytes
from kvcore.units import GIB, gib
from tests.engine_examples import ASCEND, GEMMA3_12B, H100, L40S, LLAMA_8B, QWEN3_14B, RTX_3090, setting_for


@pytest.mark.parametrize(
    ("fields", "printed_gib"),
    [
        ({"engine_version": "0.16.0"}, 0.13),
        ({"engine_version": "0.19.0"}, 0.25),
        ({"engine_version": "0.19.0", "tensor_parallel_size": 2}, 2.06),
        ({"engine_version": "0.19.0", "tensor_parallel_size": 4}, 2.13),
        ({"engine_version": "0.8.5", "tensor_parallel_size": 4, "accelerator": L40S,
          "env": {"VLLM_USE_V1": "0"}}, 0.2),
    ],
)  # fmt: skip
def test_printed_non_torch_memory_lies_inside_the_interval(
    fields: dict[str, object], printed_gib: float
) -> None:
    """vLLM's own "non_torch_memory takes" and "non-torch forward increase"."""
    quantity = non_torch_bytes(setting_for(**fields))
    assert quantity.interval is not None
    assert quantity.interval[0] <= printed_gib * GIB <= quantity.interval[1]


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


def test_the_link_decides_and_not_the_number_of_cards() -> None:
    pcie = setting_for(
        accelerator=RTX_3090, tensor_parallel_size=2, engine_version="0.19.0", max_model_len=1024
    )
    assert pcie.link == "pcie"
    assert non_torch_bytes(pcie).value < 0.5 * GIB
    assert (
        setting_for(
            tensor_parallel_size=16, engine_version="0.19.0", config={**LLAMA_8B, "num_attention_heads": 64}
        ).link
        == "pcie"
    )
    assert setting_for(accelerator="GB10-128GB").link == "unified"


def test_ascend_has_figures_of_its_own() -> None:
    one = setting_for(engine="vllm-ascend", accelerator=ASCEND, engine_version="0.13.0")
    many = setting_for(
        engine="vllm-ascend", accelerator=ASCEND, engine_version="0.13.0", tensor_parallel_size=4
    )
    assert "ascend" in non_torch_bytes(one).source
    assert non_torch_bytes(many).value > non_torch_bytes(one).value
