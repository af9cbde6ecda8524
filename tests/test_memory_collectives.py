"""Workspaces of fused all-reduce: sizes by FlashInfer's own formulas, on by default as releases say."""

from typing import Any, ClassVar

import pytest

from kvcore.advice.fixes import refusal_fixes
from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import GIB, MIB, gib
from kvcore.memory.collectives import exchange_bytes, fusion_workspace_bytes
from kvcore.memory.framework import FRAMEWORK, non_torch_bytes, system_bytes
from kvcore.planning import Verdict, plan
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import H100, LLAMA_8B, QWEN3_30B_A3B, QWEN25_7B, setting_for

PAGE = 2 * MIB


def workspace(link: str = "nvlink", **fields: Any) -> int:
    return fusion_workspace_bytes(FRAMEWORK.load().allreduce_fusion, setting_for(**fields), link)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # 64 MiB, two ranks: 128 + flags + 3 x 128 MiB, each in pages of 512 MiB.
        ({"engine_version": "0.19.0", "tensor_parallel_size": 2}, 3 * 512 * MIB),
        ({"engine_version": "0.17.1", "tensor_parallel_size": 4}, 3 * 512 * MIB),
        # 64 MiB, four ranks: 256 MiB in one page, 768 in two.
        ({"engine_version": "0.19.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 4 * 512 * MIB),
        # Pages of 2 MiB, one more for the signals: 2 MiB, four ranks are 8 + 2, flags, 24 + 2.
        ({"engine_version": "0.22.0", "tensor_parallel_size": 4}, (10 + 4 + 26) * MIB),
        # mnnvl: 3 x 2 x 2 MiB and one page, beside the former.
        ({"engine_version": "0.25.1", "tensor_parallel_size": 4}, (12 + 2) * MIB + (10 + 4 + 26) * MIB),
        ({"engine_version": "0.26.0", "tensor_parallel_size": 4}, (12 + 2) * MIB),
        # 3 x 2 x 64 MiB.
        ({"engine_version": "0.26.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 386 * MIB),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 512 * MIB),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 8}, 512 * MIB),
        # 80 MiB from 0.29 on: 3 x 2 x 80 MiB.
        ({"engine_version": "0.29.0", "tensor_parallel_size": 4, "accelerator": "B300-288GB"}, 512 * MIB),
        # 128 MiB for eight from 0.33 on: 768 MiB.
        ({"engine_version": "0.33.0", "tensor_parallel_size": 8, "accelerator": "B200-180GB"}, 1024 * MIB),
        # No multicast memory without an NVSwitch: bridges fall back to plain buffers, or to nothing.
        ({"engine_version": "0.19.0", "tensor_parallel_size": 2, "accelerator": "H100-NVL-94GB"}, 0),
        ({"engine_version": "0.27.1", "tensor_parallel_size": 4, "accelerator": "H100-NVL-94GB"}, (10 + 4 + 26) * MIB),
    ],
)  # fmt: skip
def test_sizes_follow_the_source(fields: dict[str, Any], expected: int) -> None:
    """Llama-3.1-8B: 4,096 × 2 bytes a token, so that sizes are whole tokens, and 8,192 tokens a step."""
    assert workspace(**fields) - expected in range(-PAGE + 1, 1)


def test_a_small_batch_needs_less() -> None:
    """Qwen2.5-7B with 1,024 tokens of 7,168 bytes: two ranks, 14 MiB + flags + 42 MiB, in pages of 2 MiB."""
    size = workspace(
        config=QWEN25_7B, engine_version="0.22.0", tensor_parallel_size=2, max_num_batched_tokens=1024
    )
    assert size == (16 + 4 + 44) * MIB


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_version": "0.16.0"},
        {"engine_version": "0.19.0", "tensor_parallel_size": 1},
        {"engine_version": "0.19.0", "link": "pcie"},
        {"engine_version": "0.19.0", "enforce_eager": True},
        {"engine_version": "0.19.0", "fuse_allreduce_rms": False},
        {"engine_version": "0.19.0", "pipeline_parallel_size": 2},
        {"engine_version": "0.19.0", "data_parallel_size": 2},
        {"engine_version": "0.19.0", "accelerator": "A100-80GB"},
        {"engine_version": "0.18.0", "accelerator": "B300-288GB"},
        {"engine_version": "0.29.0", "enforce_eager": True, "env": {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"}},
        {"engine_version": "0.19.0", "accelerator": "MI300X-192GB"},
    ],
)
def test_where_there_is_none(fields: dict[str, Any]) -> None:
    assert workspace(**{"tensor_parallel_size": 2, **fields}) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_version": "0.16.0", "fuse_allreduce_rms": True},
        {"engine_version": "0.22.0", "data_parallel_size": 2},
        {"engine_version": "0.29.0", "enforce_eager": True},
        {"engine_version": "0.19.0", "enforce_eager": True, "env": {"VLLM_ALLREDUCE_USE_FLASHINFER": "1"}},
    ],
)
def test_where_there_is_one(fields: dict[str, Any]) -> None:
    assert workspace(config=LLAMA_8B, accelerator=H100, tensor_parallel_size=2, **fields) > 0


class TestExchange:
    """DeepEP between 16 ranks with whole experts."""

    WIDE: ClassVar = {**QWEN3_30B_A3B, "hidden_size": 5120, "num_experts": 448, "moe_intermediate_size": 64}
    RANKS: ClassVar = {"data_parallel_size": 16, "enable_expert_parallel": True}

    @pytest.mark.parametrize(("tokens", "printed_gib"), [(1536, 26.66), (1840, 31.94)])
    def test_low_latency_buffers_are_those_that_a_start_printed(
        self, tokens: int, printed_gib: float
    ) -> None:
        """Hidden size 5,120, 448 experts, EP 16: 4 × 448 × tokens × (10,240 + 160) bytes, and 1 GiB."""
        setting = setting_for(
            self.WIDE, engine_version="0.22.0", all2all_backend="deepep_low_latency", max_num_seqs=256,
            max_num_batched_tokens=tokens, **self.RANKS,
        )  # fmt: skip
        assert gib(exchange_bytes(setting) - GIB) == pytest.approx(printed_gib, abs=0.005)
        assert non_torch_bytes(setting).value > exchange_bytes(setting)

    def test_a_rank_sends_256_tokens_unless_it_is_said(self) -> None:
        for version, said in (
            ("0.19.0", {"all2all_backend": "deepep_low_latency"}),
            ("0.20.0", {"all2all_backend": "deepep_low_latency"}),
            ("0.10.2", {"env": {"VLLM_ALL2ALL_BACKEND": "deepep_low_latency"}}),
        ):
            setting = setting_for(self.WIDE, engine_version=version, **self.RANKS, **said)
            assert exchange_bytes(setting) == GIB + 4 * 448 * 256 * 10400
            assert (setting.resolved.max_num_batched_tokens == 256) is (version == "0.20.0")

    def test_copies_of_experts_are_sent_to_as_well(self) -> None:
        setting = setting_for(
            self.WIDE, engine_version="0.19.0", all2all_backend="deepep_low_latency", num_redundant_experts=32,
            env={"VLLM_MOE_DP_CHUNK_SIZE": "128"}, **self.RANKS,
        )  # fmt: skip
        assert exchange_bytes(setting) == GIB + 4 * 480 * 128 * 10400

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"all2all_backend": "deepep_high_throughput"}, 2 * GIB),
            ({"all2all_backend": "deepep_high_throughput", "data_parallel_size": 8}, GIB),
            (
                {"all2all_backend": "deepep_high_throughput", "env": {"VLLM_DEEPEP_BUFFER_SIZE_MB": "256"}},
                512 * MIB,
            ),
            (
                {"all2all_backend": "deepep_high_throughput", "env": {"VLLM_DEEPEP_BUFFER_SIZE_MB": "²"}},
                2 * GIB,
            ),
            ({"all2all_backend": "deepep_low_latency", "data_parallel_size": 1}, 0),
            ({"all2all_backend": "deepep_low_latency", "enable_expert_parallel": False}, 0),
            ({"all2all_backend": "allgather_reducescatter"}, 0),
            ({}, 0),
        ],
    )
    def test_other_backends_and_other_cuts(self, fields: dict[str, Any], expected: int) -> None:
        setting = setting_for(self.WIDE, engine_version="0.19.0", **{**self.RANKS, **fields})
        assert exchange_bytes(setting) == expected

    def test_pplx_in_a_machine_has_a_buffer_for_each_rank(self) -> None:
        """8 ranks of 56 experts, 256 tokens: 8 × (16 + 224 + 256 × 56 × 5,120 × 4) bytes, six numbers a row."""
        setting = setting_for(
            self.WIDE, engine_version="0.16.0", all2all_backend="pplx", data_parallel_size=8,
            enable_expert_parallel=True,
        )  # fmt: skip
        assert exchange_bytes(setting) == 8 * (16 + 224 + 256 * 56 * 20480) + 24 * 256 * 448

    @pytest.mark.parametrize(
        ("quantized", "message"),
        [
            # 2 × 5,120 bytes and an index, in units of 16.
            ({}, 10256),
            # 5,120 bytes, 40 scales of 4 bytes, and an index.
            (
                {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
                5120 + 160 + 16,
            ),
        ],
    )
    def test_pplx_between_machines_collects_answers_of_all_experts(
        self, quantized: dict[str, Any], message: int
    ) -> None:
        """16 ranks, two of them a group of tensor parallelism: rows of 28 experts from 8 groups."""
        setting = setting_for(
            {**self.WIDE, **quantized, "moe_intermediate_size": 256}, engine_version="0.11.0",
            env={"VLLM_ALL2ALL_BACKEND": "pplx", "VLLM_MOE_DP_CHUNK_SIZE": "64"}, tensor_parallel_size=2,
            data_parallel_size=8, enable_expert_parallel=True,
        )  # fmt: skip
        rows = 64 * 28 * 8
        assert exchange_bytes(setting) == 64 * message + rows * (message + 20480 + 20) + 64 * 448 * 20480

    def test_pplx_means_gathering_from_017_on(self) -> None:
        setting = setting_for(self.WIDE, engine_version="0.17.1", all2all_backend="pplx", **self.RANKS)
        assert exchange_bytes(setting) == 0

    @pytest.mark.parametrize(
        ("fields", "low_gib", "high_gib"),
        [
            # 4 GiB, and 2 before March 2026.
            ({"all2all_backend": "mori"}, 2.0, 4.0),
            ({"all2all_backend": "mori_low_latency", "engine_version": "0.33.0"}, 2.0, 4.0),
            ({"all2all_backend": "mori", "env": {"MORI_SHMEM_HEAP_SIZE": "6G"}}, 6.0, 6.0),
            ({"all2all_backend": "mori", "env": {"MORI_SHMEM_HEAP_SIZE": "512MiB"}}, 0.5, 0.5),
            ({"all2all_backend": "mori", "env": {"MORI_SHMEM_HEAP_SIZE": "much"}}, 2.0, 4.0),
            ({"all2all_backend": "mori", "enable_expert_parallel": False}, 0.0, 0.0),
        ],
    )
    def test_a_heap_of_mori_is_outside_the_budget(
        self, fields: dict[str, Any], low_gib: float, high_gib: float
    ) -> None:
        """Its value is the upper figure; the interval goes down to the other, or as far as without it."""
        asked = {"engine_version": "0.19.0", "accelerator": "MI300X-192GB", "data_parallel_size": 8,
                 "enable_expert_parallel": True}  # fmt: skip
        asked |= fields
        plain = system_bytes(setting_for(self.WIDE, **{**asked, "all2all_backend": None}))
        heap = system_bytes(setting_for(self.WIDE, **asked))
        assert gib(heap.value - plain.value) == pytest.approx(high_gib)
        below, plain_below = heap.value - heap.bounds[0], plain.value - plain.bounds[0]
        assert gib(below**2 - plain_below**2) / GIB == pytest.approx((high_gib - low_gib) ** 2)


class TestLowLatencyBuffer:
    """github.com/vllm-project/vllm/issues/57894: hidden size 5,120, 384 experts and 64 redundant ones on 16 ranks:
    35.55 GiB for 2,048 tokens a rank, 32.21 for 1,856, 31.94 for 1,840."""

    ASKED: ClassVar[dict[str, Any]] = {
        "model": "Qwen/Qwen3-235B-A22B-FP8", "accelerator": "H200-141GB", "data_parallel_size": 16,
        "enable_expert_parallel": True, "all2all_backend": "deepep_low_latency", "engine_version": "0.30.0",
        "max_num_seqs": 256,
    }  # fmt: skip

    @pytest.mark.parametrize(("tokens", "size"), [(1856, "32.2 GiB"), (2048, "35.5 GiB")])
    def test_32_gib_are_too_much(self, tokens: int, size: str) -> None:
        setting = setting_for(
            TestExchange.WIDE, engine_version="0.30.0", all2all_backend="deepep_low_latency", max_num_seqs=256,
            max_num_batched_tokens=tokens, **TestExchange.RANKS,
        )  # fmt: skip
        with pytest.raises(EngineRefusalError) as caught:
            exchange_bytes(setting)
        assert (caught.value.params["size"], caught.value.params["most"]) == (size, "1,843")

    def test_the_most_tokens_start(self) -> None:
        asked = {**self.ASKED, "num_redundant_experts": 64}
        refused = scenario_from_request({**asked, "max_num_batched_tokens": 8192})
        with pytest.raises(EngineRefusalError) as caught:
            plan(refused)
        assert (caught.value.code, caught.value.field) == (
            "exchange-buffer-too-large",
            "max_num_batched_tokens",
        )
        assert "5,377 tokens" in str(caught.value)
        assert plan(scenario_from_request({**asked, "max_num_batched_tokens": 5377})).verdict is Verdict.FITS
        assert "max_num_batched_tokens" in {fix.field for fix in refusal_fixes(refused, caught.value)}

    def test_before_batches_were_exchanged_a_variable_is_too_large(self) -> None:
        asked = {**self.ASKED, "engine_version": "0.19.0", "env": {"VLLM_MOE_DP_CHUNK_SIZE": "9000"}}
        with pytest.raises(EngineRefusalError) as caught:
            plan(scenario_from_request(asked))
        assert caught.value.field == "env.VLLM_MOE_DP_CHUNK_SIZE"
