"""Engine arguments out of untrusted lines: typed, bounded, or not taken."""

from typing import Any

import pytest

from kvcore.evidence.log.arguments import LogFlags, read_flags
from kvcore.evidence.log.cleaned import clean_log
from kvcore.scenario import SpeculativeConfig


def flags_of(text: str) -> LogFlags:
    log = clean_log(text)
    return read_flags(log, 0, len(log.text)).flags


def model_of(text: str) -> str | None:
    log = clean_log(text)
    return read_flags(log, 0, len(log.text)).model


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        ("'tensor_parallel_size': 8", "tensor_parallel_size", 8),
        ("'tensor_parallel_size': 0", "tensor_parallel_size", None),
        ("'tensor_parallel_size': -4", "tensor_parallel_size", None),
        ("'tensor_parallel_size': 100000", "tensor_parallel_size", None),
        ("'tensor_parallel_size': 2.5", "tensor_parallel_size", None),
        ("'tensor_parallel_size': __import__('os')", "tensor_parallel_size", None),
        ("'tensor_parallel_size': 9999999999999999999999999999", "tensor_parallel_size", None),
        ("'max_model_len': -1", "max_model_len", -1),
        ("'max_model_len': 'auto'", "max_model_len", -1),
        ("'max_model_len': 131072", "max_model_len", 131072),
        ("'gpu_memory_utilization': 0.95", "gpu_memory_utilization", 0.95),
        ("'gpu_memory_utilization': .9", "gpu_memory_utilization", 0.9),
        ("'gpu_memory_utilization': 95", "gpu_memory_utilization", None),
        ("'gpu_memory_utilization': nan", "gpu_memory_utilization", None),
        ("'gpu_memory_utilization': '.'", "gpu_memory_utilization", None),
        ("'dtype': torch.bfloat16", "dtype", "bfloat16"),
        ("'dtype': <ModelDType.HALF: 'half'>", "dtype", "half"),
        ("'dtype': '<script>alert(1)</script>'", "dtype", None),
        ("'kv_cache_dtype': 'fp8_e4m3'", "kv_cache_dtype", "fp8_e4m3"),
        ("'enforce_eager': True", "enforce_eager", True),
        ("'enforce_eager': 'yes'", "enforce_eager", None),
        ("'quantization': 'awq'", "quantization", "awq"),
        ("'quantization': None", "quantization", None),
        ("'kv_cache_memory_bytes': 9320148582", "kv_cache_memory_bytes", 9320148582),
        ("'cpu_offload_gb': 10.5", "cpu_offload_gb", 10.5),
        ("'limit_mm_per_prompt': {'image': 4, 'video': 0}", "limit_mm_per_prompt", {"image": 4, "video": 0}),
        (
            "'limit_mm_per_prompt': {'image': {'count': 2, 'width': 512}, 'video': {'count': 1, 'length': 3}}",
            "limit_mm_per_prompt",
            {"image": 2, "image.width": 512, "video": 1},
        ),
        ("'limit_mm_per_prompt': {'image': {'count': 2, 'width': 0}}", "limit_mm_per_prompt", {"image": 2}),
        ("'limit_mm_per_prompt': {}", "limit_mm_per_prompt", None),
        (
            "'speculative_config': {'method': 'eagle3', 'model': 'a/b', 'num_speculative_tokens': 3}",
            "speculative_config",
            SpeculativeConfig(method="eagle3", model="a/b", num_speculative_tokens=3),
        ),
        (
            """'speculative_config': '{"method": "mtp", "num_speculative_tokens": 2, "enforce_eager": true}'""",
            "speculative_config",
            SpeculativeConfig(method="mtp", num_speculative_tokens=2, enforce_eager=True),
        ),
        (
            "'speculative_config': {'model': 'small', 'num_speculative_tokens': 5}",
            "speculative_config",
            SpeculativeConfig(method="draft_model", model="small", num_speculative_tokens=5),
        ),
        ("'speculative_config': None", "speculative_config", None),
        ("'runner': 'pooling'", "runner", "pooling"),
        ("'runner': 'generate'", "runner", "generate"),
        ("'runner': 'auto'", "runner", None),
        ("'runner': 'draft'", "runner", None),
        ("'task': 'embed'", "runner", "pooling"),
        ("'task': 'embedding'", "runner", "pooling"),
        ("'task': 'classify'", "runner", "pooling"),
        ("'task': 'generate'", "runner", "generate"),
        ("'task': 'auto'", "runner", None),
        ("'runner_type': 'pooling'", "runner", "pooling"),
        ("'pooler_config': PoolerConfig(pooling_type='LAST', normalize=True)", "runner", "pooling"),
        ("'pooler_config': None", "runner", None),
        ("'mamba_cache_mode': 'align'", "mamba_cache_mode", "align"),
        ("'mamba_cache_mode': 'none'", "mamba_cache_mode", None),
        ("'mamba_ssm_cache_dtype': 'float16'", "mamba_ssm_cache_dtype", "float16"),
        ("'mamba_ssm_cache_dtype': 'auto'", "mamba_ssm_cache_dtype", None),
        ("'mamba_cache_dtype': 'float32'", "mamba_cache_dtype", "float32"),
        ("'mamba_cache_dtype': 'float8'", "mamba_cache_dtype", None),
        ("'mamba_block_size': 4096", "mamba_block_size", 4096),
        ("'disable_custom_all_reduce': True", "disable_custom_all_reduce", True),
        ("'skip_mm_profiling': True", "skip_mm_profiling", True),
        ("'mm_encoder_tp_mode': 'data'", "mm_encoder_tp_mode", "data"),
        ("'mm_encoder_tp_mode': 'both'", "mm_encoder_tp_mode", None),
        (
            "'mm_processor_kwargs': {'max_pixels': 262144, 'fps': 0.5, 'use_fast': True}",
            "mm_processor_kwargs",
            {"max_pixels": 262144, "fps": 0.5},
        ),
        ("'mm_processor_kwargs': {'max_pixels': -1}", "mm_processor_kwargs", None),
        ("'compilation_config': {'pass_config': {'fuse_allreduce_rms': False}}", "fuse_allreduce_rms", False),
        (
            "'compilation_config': {'pass_config': {'enable_fi_allreduce_fusion': True}}",
            "fuse_allreduce_rms",
            True,
        ),
        ("'compilation_config': {'fusions': {'fuse_allreduce_rms': True}}", "fuse_allreduce_rms", None),
    ],
)
def test_value_of_a_flag(value: str, name: str, expected: Any) -> None:
    flags = flags_of(f"INFO non-default args: {{'model': 'm', {value}, 'seed': 0}}")
    assert getattr(flags, name) == expected


def test_nested_fields_are_not_flags() -> None:
    flags = flags_of(
        "non-default args: {'model': 'outer', 'compilation_config': {'block_size': 99, 'model': 'inner', 'x': [{}]}, "
        "'hf_overrides': {'max_model_len': 5}, 'max_num_seqs': 7}"
    )
    assert flags == LogFlags(max_num_seqs=7, hf_overrides='{"max_model_len": 5}')


def test_model_is_the_outer_one() -> None:
    assert (
        model_of("non-default args: {'speculative_config': {'model': 'draft'}, 'model': 'target'}")
        == "target"
    )


def test_commas_and_brackets_in_text_do_not_part_it() -> None:
    flags = flags_of(
        "args: Namespace(chat_template='a, b={c} (d', api_key=None, function=<function f at 0x7f>, "
        "allowed=['*', 'x'], max_num_seqs=16, served_model_name=['a,b'])"
    )
    assert flags == LogFlags(max_num_seqs=16)


def test_given_flags_take_precedence_over_resolved_ones() -> None:
    flags = flags_of(
        "Initializing a V1 LLM engine (v0.19.0) with config: model='m', max_seq_len=262144, dtype=torch.bfloat16, x=1\n"
        "non-default args: {'max_model_len': -1, 'dtype': 'auto'}"
    )
    assert (flags.max_model_len, flags.dtype) == (-1, "auto")


def test_a_fusion_that_the_engine_resolved_counts_where_cards_share_a_model() -> None:
    passes = "compilation_config={'mode': 3, 'pass_config': {'fuse_norm_quant': False, 'fuse_allreduce_rms': True}}"
    line = "Initializing a V1 LLM engine (v0.20.0) with config: model='m', tensor_parallel_size={}, {}"
    assert flags_of(line.format(2, passes)).fuse_allreduce_rms is True
    assert flags_of(line.format(1, passes)).fuse_allreduce_rms is None


def test_passes_within_passes_are_read_no_deeper() -> None:
    deep = "{'pass_config': " * 2000
    assert (
        flags_of(
            f"non-default args: {{'model': 'm', 'max_num_seqs': 7, 'compilation_config': {deep}"
        ).fuse_allreduce_rms
        is None
    )


def test_method_of_the_checkpoint_is_not_a_flag() -> None:
    log = clean_log("with config: model='m', quantization=compressed-tensors, enforce_eager=True, x=1")
    found = read_flags(log, 0, len(log.text))
    assert (found.flags.quantization, found.resolved_quantization) == (None, "compressed-tensors")
    assert found.flags.enforce_eager is True


def test_flags_of_a_shell_command_are_read() -> None:
    flags = flags_of(
        "$ vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 32k --gpu-memory-utilization=0.85 \\\n"
        "    --enforce-eager --no-enable-prefix-caching --max-num-seqs 64 \\\n"
        '    --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'\n'
        "--max-num-seqs 1\n"
    )
    assert flags == LogFlags(
        tensor_parallel_size=4,
        max_model_len=32000,
        gpu_memory_utilization=0.85,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_num_seqs=64,
        speculative_config=SpeculativeConfig(method="mtp", num_speculative_tokens=2),
    )


def test_shell_command_out_of_a_word_processor() -> None:
    text = "vllm serve m \u2013\u2013max-model-len 8192 \u2014tensor-parallel-size 2 --kv-cache-dtype fp8"
    assert flags_of(text) == LogFlags(max_model_len=8192, tensor_parallel_size=2, kv_cache_dtype="fp8")


@pytest.mark.parametrize(
    ("command", "unusable", "unused"),
    [
        ("vllm serve m --tensor-parallel-size -4", "--tensor-parallel-size -4", ""),
        ("vllm serve m --tensor-parallel-size=-4", "--tensor-parallel-size -4", ""),
        (f"vllm serve m --max-model-len 1{'0' * 30}", f"--max-model-len 1{'0' * 30}", ""),
        ("vllm serve m --gpu-memory-utilization 95%", "--gpu-memory-utilization 95%", ""),
        ("vllm serve m --gpu-memory-utilization 1.5", "--gpu-memory-utilization 1.5", ""),
        ("vllm serve m --max-num-seqs --dtype half", "--max-num-seqs", ""),
        ("vllm serve m --foo bar --swap-space 16 -O3", "", "--foo bar, --swap-space 16, -O3"),
        ("vllm serve m --api-key2 sk-123 --no-log-replies", "", "--api-key2, --no-log-replies"),
        ("vllm serve m --max-model-len auto --quantization None --max-model-len -1 -tp 4", "", ""),
        ("vllm serve m --cudagraph-capture-sizes 1 2 4 --fully-sharded-loras --language-model-only", "", ""),
    ],
)
def test_ignored_flags_of_a_command_are_reported(command: str, unusable: str, unused: str) -> None:
    log = clean_log(f"$ {command}")
    found = {notice.code: dict(notice.params) for notice in read_flags(log, 0, len(log.text)).notices}
    expected = {"log-flags-unusable": unusable, "log-flags-unused": unused}
    assert found == {code: {"line": "1", "flags": flags} for code, flags in expected.items() if flags}


def test_flags_without_a_field_are_told_apart_by_their_effect() -> None:
    log = clean_log(
        "$ vllm serve m --port 8888 --trust-remote-code --moe-backend triton --stream-interval 20 --no-such 1 "
        "--attention-config.backend FLASHINFER --compilation-config '{\"mode\": 3}' --api-key sk-123"
    )
    found = {notice.code: notice.params["flags"] for notice in read_flags(log, 0, len(log.text)).notices}
    assert found == {
        "log-flags-without-effect": "--port 8888, --trust-remote-code, --stream-interval 20, --api-key",
        "log-flags-not-planned": "--moe-backend triton, --attention-config.backend FLASHINFER, "
        '--compilation-config {"mode":3}',
        "log-flags-unused": "--no-such 1",
    }


@pytest.mark.parametrize(
    "written",
    [
        '--eplb-config \'{"window_size":1000,"num_redundant_experts":32}\'',
        "--eplb-config.num_redundant_experts 32",
        "--num-redundant-experts 32",
    ],
)
def test_redundant_experts_in_every_spelling(written: str) -> None:
    assert flags_of(f"vllm serve m --enable-eplb {written} --max-num-seqs 8").num_redundant_experts == 32


def test_redundant_experts_in_an_argument_line() -> None:
    line = "non-default args: {'model': 'm', 'eplb_config': EPLBConfig(window_size=1000, num_redundant_experts=16)}"
    assert flags_of(line).num_redundant_experts == 16


@pytest.mark.parametrize(
    "written",
    [
        '--attention-config \'{"backend": "FLASHINFER", "indexer_kv_dtype": "fp8"}\'',
        "--attention-config.indexer_kv_dtype fp8",
        "--attention_config.indexer_kv_dtype fp8",
    ],
)
def test_the_dtype_of_an_indexer_in_every_spelling(written: str) -> None:
    assert flags_of(f"vllm serve m {written} --max-num-seqs 8").indexer_kv_dtype == "fp8"


def test_a_draft_by_flags_of_its_own() -> None:
    flags = flags_of("vllm serve m --spec-method mtp --spec-tokens 3")
    assert flags.speculative_config == SpeculativeConfig(method="mtp", num_speculative_tokens=3)
    flags = flags_of("vllm serve m --spec-model Qwen/Qwen3-0.6B --spec-tokens 2")
    assert flags.speculative_config == SpeculativeConfig(
        method="draft_model", model="Qwen/Qwen3-0.6B", num_speculative_tokens=2
    )
    assert flags_of("vllm serve m --spec-tokens 3").speculative_config is None


def test_truncated_arguments_give_their_complete_fields() -> None:
    flags = flags_of("non-default args: {'model': 'm', 'max_num_seqs': 64, 'max_model_len': 81")
    assert flags == LogFlags(max_num_seqs=64)


def test_control_characters_of_a_model_name_do_not_come_through() -> None:
    model = model_of("non-default args: {'model': 'a\x07b', 'max_num_seqs': 1}")
    assert model is None or model.isprintable()


@pytest.mark.parametrize(
    "opening", ["{'a': " * 3000, "{'a': '" * 3000, "{" + "[({" * 3000, "{'" + "\\" * 9001]
)
def test_deep_and_unclosed_arguments_are_not_followed(opening: str) -> None:
    assert flags_of("non-default args: " + opening + "'max_num_seqs': 4}") == LogFlags()


class TestCompilation:
    """Whether the start found its kernels compiled: lines of vLLM 0.20 to 0.32."""

    ARGUMENTS = "non-default args: {'model': 'Qwen/Qwen3-8B'}\n"
    LOADED = (
        "INFO [decorators.py:305] Directly load AOT compilation from path /root/.cache/vllm/compile_cache/x\n"
    )
    SAVED = (
        "INFO [decorators.py:668] saved AOT compiled function to /root/.cache/vllm/torch_compile_cache/x\n"
    )

    @pytest.mark.parametrize(("lines", "compiled"), [(LOADED, True), (SAVED, False), ("", None)])
    def test_lines_about_compiled_kernels_are_read(self, lines: str, compiled: bool | None) -> None:
        log = clean_log(self.ARGUMENTS + lines)
        found = read_flags(log, 0, len(log.text))
        assert found.flags.kernels_compiled is compiled
        kinds = [line.kind for line in found.flag_lines]
        assert kinds == ["arguments"] + ["compilation"] * (compiled is not None)

    def test_it_is_no_engine_argument(self) -> None:
        log = clean_log(self.LOADED)
        found = read_flags(log, 0, len(log.text))
        assert found.flags.kernels_compiled is True
        assert found.flag_lines == ()


def test_fields_of_objects_may_be_single_flags_of_a_command() -> None:
    flags = flags_of(
        "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --limit-mm-per-prompt.image 2 --limit-mm-per-prompt.image.width=512 "
        "--mm-processor-kwargs.max_pixels 262144 --mm-processor-kwargs.fps nonsense --limit-mm-per-prompt.smell 3"
    )
    assert flags.limit_mm_per_prompt == {"image": 2, "image.width": 512}
    assert flags.mm_processor_kwargs == {"max_pixels": 262144}
