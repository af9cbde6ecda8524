"""Peak activations: published profile runs, and the arithmetic of each mechanism."""

import pytest
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.units import GIB, gib
from kvcore.engines.registry import find_engine
from kvcore.memory.activations import (
    body_bytes,
    compiling_bytes,
    expert_workspace_bytes,
    multiprocessors,
    peak_activation_bytes,
    restart_gain_bytes,
    sampler_bytes,
    sampler_row,
    sampler_rows,
)
from kvcore.planning import Verdict, plan
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import (
    GEMMA3_12B,
    L40S,
    LLAMA_8B,
    QWEN3_14B,
    QWEN3_30B_A3B,
    QWEN25_05B,
    QWEN25_7B,
    setting_for,
)

VLLM = find_engine("vllm")


@pytest.mark.parametrize(
    ("config", "fields", "printed_gib"),
    [
        (QWEN3_14B, {"engine_version": "0.16.0"}, 5.64),
        (QWEN3_14B, {"engine_version": "0.17.0"}, 2.23),
        (QWEN3_30B_A3B, {"engine_version": "0.10.2"}, 5.58),
        (GEMMA3_12B, {"engine_version": "0.19.0", "max_model_len": 8192}, 3.94),
        (QWEN25_05B, {"engine_version": "0.26.0", "max_num_batched_tokens": 32768, "max_num_seqs": 256,
                      "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}, 1.06),
        (LLAMA_8B, {"engine_version": "0.6.6", "max_model_len": 20000, "max_num_batched_tokens": 20000,
                    "max_num_seqs": 16}, 2.071),
        (LLAMA_8B, {"engine_version": "0.6.6", "max_model_len": 29000, "max_num_batched_tokens": 29000,
                    "max_num_seqs": 16}, 2.991),
    ],
)  # fmt: skip
def test_published_profile_runs(
    config: dict[str, object], fields: dict[str, object], printed_gib: float
) -> None:
    """vLLM's own "PyTorch activation peak memory" on the cards named in benchmarks/data/starts.jsonl."""
    peak = peak_activation_bytes(setting_for(config, **fields))
    assert gib(peak.value) == pytest.approx(printed_gib, rel=0.03)
    assert peak.interval is not None
    assert peak.interval[0] <= printed_gib * GIB <= peak.interval[1]


def test_layers_hold_three_hidden_and_three_intermediate_vectors_a_token() -> None:
    tokens = 8192
    assert body_bytes(setting_for(engine_version="0.19.0")) == tokens * 2 * 3 * (4096 + 14336)
    cut = setting_for(engine_version="0.19.0", tensor_parallel_size=4)
    assert body_bytes(cut) == tokens * 2 * 3 * (4096 + 14336 // 4)


def test_sampling_is_paid_by_the_last_stage_only() -> None:
    fields = {"engine_version": "0.19.0", "pipeline_parallel_size": 2, "kernels_compiled": True}
    first = peak_activation_bytes(setting_for(stage=0, **fields))
    last = peak_activation_bytes(setting_for(stage=1, **fields))
    assert first.value == body_bytes(setting_for(stage=0, **fields))
    assert last.value > first.value


def test_sampling_grows_with_sequences_and_vocabulary() -> None:
    row = sampler_row(VLLM, "v1", Version("0.19.0"))
    few, many = (
        sampler_bytes(setting_for(engine_version="0.19.0", max_num_seqs=n), row) for n in (256, 1024)
    )
    assert many - few == pytest.approx(row.bytes_per_logit * 768 * 128256, abs=2)


def test_eras_of_sampling() -> None:
    assert sampler_row(VLLM, "v1", Version("0.16.0")).bytes_per_logit == 38.0
    assert sampler_row(VLLM, "v1", Version("0.17.1")).bytes_per_logit == 14.0
    assert sampler_row(VLLM, "v2", Version("0.26.0")).bytes_per_logit == 6.0
    assert sampler_row(VLLM, "v2", Version("0.27.0")).bytes_per_logit == 2.0
    assert sampler_row(VLLM, "v2", Version("0.29.0")).bytes_per_logit == 2.0
    assert sampler_row(VLLM, "v2", Version("0.33.0")).bytes_per_logit == 14.0


class TestFlashInfer:
    """Published: Mistral-Small-3.2 in the image of 0.11.0 peaks at 2.12 GiB, Qwen3-30B-A3B on 0.10.2 at 5.58."""

    @staticmethod
    def peaks_gib(version: str, **fields: object) -> tuple[float, float, float]:
        peak = peak_activation_bytes(setting_for(QWEN3_14B, engine_version=version, **fields))
        assert peak.interval is not None
        return gib(peak.value), gib(peak.interval[0]), gib(peak.interval[1])

    SORTED = 38 * 1024 * 151936 / GIB
    FILTERED = 14 * 1024 * 151936 / GIB

    @pytest.mark.parametrize(
        ("installation", "likely", "low", "high"),
        [("image", SORTED, FILTERED, SORTED), ("ngc", SORTED, FILTERED, SORTED), ("pip", SORTED, SORTED, SORTED),
         ("vendor", SORTED, FILTERED, SORTED), (None, SORTED, FILTERED, SORTED)],
    )  # fmt: skip
    def test_the_installation_decides_before_0_11_1(
        self, installation: str | None, likely: float, low: float, high: float
    ) -> None:
        around = {} if installation is None else {"surroundings": {"installation": installation}}
        found = self.peaks_gib("0.11.0", **around)
        assert found == pytest.approx((likely, low, high), abs=0.26)
        assert found[1] <= found[0] <= found[2]

    @pytest.mark.parametrize(
        ("version", "variable", "per_logit"),
        [("0.11.0", "0", 38), ("0.11.1", None, 38), ("0.11.1", "1", 14), ("0.16.0", "0", 38),
         ("0.20.2", None, 14), ("0.21.0", None, 14), ("0.21.0", "0", 14)],
    )  # fmt: skip
    def test_the_variable_decides(self, version: str, variable: str | None, per_logit: int) -> None:
        env = {} if variable is None else {"env": {"VLLM_USE_FLASHINFER_SAMPLER": variable}}
        (row,) = sampler_rows(setting_for(QWEN3_14B, engine_version=version, **env))
        assert row.bytes_per_logit == per_logit
        on = variable == "1" or (variable is None and version >= "0.21")
        assert row.is_flashinfer is on

    def test_volta_and_other_vendors_do_without(self) -> None:
        amd = {"accelerator": {"memory_gib": 191.98, "name": "MI300X", "vendor": "amd"}}
        volta = {"accelerator": {"memory_gib": 31.74, "name": "V100 32GB"}}
        for fields in (amd, volta):
            (row,) = sampler_rows(setting_for(QWEN3_14B, engine_version="0.10.2", **fields))
            assert not row.is_flashinfer


class TestCompiling:
    """Published peaks: Qwen3-4B on an RTX 4090 with 0.27.1, first start 0.80 GiB and restart 0.11; Llama-3.1-8B on an
    A100 with 0.31, 1.44 GiB of which the graphs' estimate is 0.46; Qwen2.5-7B-AWQ on a 16 GB card, 1.04 GiB."""

    def test_a_first_start_peaks_at_a_copy_of_the_embedding_table(self) -> None:
        setting = setting_for(QWEN3_14B, engine_version="0.28.0", accelerator=L40S)
        copied = 151936 * 5120 * 2
        peak = peak_activation_bytes(setting)
        assert compiling_bytes(setting) == copied == peak.value
        assert peak.formula == "max(layers, sampling, encoder, compiling) + kept"
        cut = setting_for(QWEN3_14B, engine_version="0.28.0", accelerator=L40S, tensor_parallel_size=2)
        assert compiling_bytes(cut) == copied // 2

    def test_two_published_starts_of_one_model_differ_by_it(self) -> None:
        """Qwen2.5-Coder-7B on 0.23.0, max_num_seqs 32: 6.06 and 6.84 GiB are left for the KV cache."""
        setting = setting_for(
            QWEN25_7B, engine_version="0.23.0", accelerator=L40S, max_num_seqs=32, max_model_len=32768
        )
        assert gib(restart_gain_bytes(peak_activation_bytes(setting))) == pytest.approx(6.84 - 6.06, abs=0.03)

    def test_a_restart_does_not_compile(self) -> None:
        fields = {"engine_version": "0.23.0", "accelerator": L40S, "max_num_seqs": 32}
        first, again = (
            peak_activation_bytes(setting_for(QWEN25_7B, kernels_compiled=compiled, **fields))
            for compiled in (False, True)
        )
        assert again.value == first.value - restart_gain_bytes(first)
        assert "compiling" not in again.formula

    def test_a_restart_peaks_lower_by_what_compiling_stands_out(self) -> None:
        """2048 tokens × 2 bytes × (3 × 5120 + 3 × 17408) is the next largest phase."""
        peak = peak_activation_bytes(setting_for(QWEN3_14B, engine_version="0.28.0", accelerator=L40S))
        assert restart_gain_bytes(peak) == 151936 * 5120 * 2 - 2048 * 2 * 3 * (5120 + 17408)

    def test_the_pooling_runner_compiles_too(self) -> None:
        """Qwen3-Embedding-0.6B on an RTX 5090 prints 0.52 GiB with 0.24 of graphs: 151,936 × 1,024 × 2 bytes."""
        setting = setting_for(QWEN25_05B, engine_version="0.29.0", runner="pooling")
        assert peak_activation_bytes(setting).value >= compiling_bytes(setting) == 151936 * 896 * 2

    def test_a_first_start_on_cuda_needs_the_copy_since_0_13(self) -> None:
        """Two first starts of Qwen2.5-7B, on 0.13.0 and 0.19.1, die while they ask for 1.02 GiB more."""
        for version in ("0.13.0", "0.19.1"):
            copied = compiling_bytes(setting_for(QWEN25_7B, engine_version=version, accelerator=L40S))
            assert round(gib(copied), 2) == 1.02
        amd = {"engine_version": "0.19.1", "accelerator": "MI300X-192GB"}
        assert compiling_bytes(setting_for(QWEN25_7B, **amd)) == 0

    def test_the_interval_reaches_down_to_a_start_that_finds_compiled_kernels(self) -> None:
        fields = {"engine_version": "0.23.0", "accelerator": L40S, "max_num_seqs": 32}
        first = peak_activation_bytes(setting_for(QWEN25_7B, **fields))
        again = peak_activation_bytes(setting_for(QWEN25_7B, kernels_compiled=True, **fields))
        assert first.bounds[0] <= again.value < first.value < first.bounds[1]

    def test_not_for_a_class_that_a_release_does_not_compile(self) -> None:
        """DeepSeek-V3.2 is in the list of 0.29.0, not in that of 0.28.0."""
        config = catalogue.find_model("deepseek-ai/DeepSeek-V3.2").config.raw
        before, after = (setting_for(config, engine_version=version) for version in ("0.28.0", "0.29.0"))
        assert compiling_bytes(before) == 129280 * 7168 * 2
        assert compiling_bytes(after) == 0

    @pytest.mark.parametrize(
        ("config", "fields"),
        [
            (QWEN3_14B, {"engine_version": "0.12.0"}),
            (QWEN3_14B, {"engine_version": "0.28.0", "enforce_eager": True}),
            (GEMMA3_12B, {"engine_version": "0.28.0"}),
        ],
    )
    def test_not_before_eager_or_with_images(
        self, config: dict[str, object], fields: dict[str, object]
    ) -> None:
        setting = setting_for(config, accelerator=L40S, **fields)
        assert compiling_bytes(setting) == 0
        peak = peak_activation_bytes(setting)
        assert "compiling" not in peak.formula
        assert restart_gain_bytes(peak) == 0


def test_expert_workspace_is_chunk_times_top_k_rows() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts of 768 features, hidden size 2048: two buffers of rows × 2048."""
    rows = 8192 * 8
    assert expert_workspace_bytes(setting_for(QWEN3_30B_A3B, engine_version="0.19.0")) == rows * 2 * 2048 * 2
    chunked = setting_for(QWEN3_30B_A3B, engine_version="0.16.0", max_num_batched_tokens=65536)
    assert expert_workspace_bytes(chunked) == 16384 * 8 * 2 * 2048 * 2
    assert expert_workspace_bytes(setting_for(LLAMA_8B)) == 0


def test_multiprocessors_by_name_and_by_capability() -> None:
    assert multiprocessors(setting_for().accelerator) == 132
    assert multiprocessors(setting_for(accelerator=L40S).accelerator) == 142
    assert multiprocessors(setting_for(accelerator="L4-24GB", max_model_len=1024).accelerator) == 58
    assert multiprocessors(setting_for(accelerator="MI300X-192GB").accelerator) == 304
    unknown = {"name": "Radeon RX 9070", "vendor": "amd", "memory_gib": 15.9}
    assert multiprocessors(setting_for(accelerator=unknown, max_model_len=1024).accelerator) == 0


def test_a_latent_mixture_computes_its_experts_on_narrow_tokens() -> None:
    """Nemotron 3 Ultra on 8 × B200: 32,768 tokens for 22 experts each, of 2048 elements and not of 8192; with 133.6 GiB
    of weights its recipe's start would have no KV cache otherwise."""
    asked = {
        "model": "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "accelerator": "B200-180GB",
        "engine_version": "0.28.0", "tensor_parallel_size": 8, "max_num_batched_tokens": 32768,
        "max_num_seqs": 16, "max_model_len": 262144,
        "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9,
    }  # fmt: skip
    found = plan(scenario_from_request(asked))
    buffers = 2 * 32768 * 22 * 2048 * 2
    assert found.memory is not None
    assert found.memory.activations.value == pytest.approx(buffers + 2.3 * GIB, abs=0.5 * GIB)
    assert found.verdict is Verdict.FITS
