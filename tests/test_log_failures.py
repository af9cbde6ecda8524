"""Every error of a failing start: recognised, put in its phase, explained, and answered with a change."""

import pytest

from kvcore.base.errors import MESSAGES
from kvcore.evidence.log.failures import ERRORS, Change, Failure, Phase
from kvcore.evidence.log.reader import read_log

ARGS = (
    "non-default args: {'model': 'Qwen/Qwen3-32B', 'max_model_len': 40960, 'tensor_parallel_size': 2, "
    "'gpu_memory_utilization': 0.9, 'max_num_seqs': 256, 'max_num_batched_tokens': 8192}"
)
LOADING = "(EngineCore pid=9) INFO 08-01 10:00:00 [gpu_model_runner.py:2602] Starting to load model Qwen/Qwen3-32B..."
LOADED = (
    "(EngineCore pid=9) INFO 08-01 10:00:10 [gpu_model_runner.py:2653] Model loading took 30.59 GiB and 5.0 "
    "seconds"
)
AVAILABLE = "(EngineCore pid=9) INFO 08-01 10:00:20 [gpu_worker.py:298] Available KV cache memory: {} GiB"
CAPTURED = (
    "(EngineCore pid=9) INFO 08-01 10:00:30 [gpu_model_runner.py:3480] Graph capturing finished in 9 secs, "
    "took 0.7 GiB"
)
READY = "(APIServer pid=1) INFO:     Application startup complete."
TORCH_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 79.19 GiB of "
    "which {} is free. Process 4711 has 78.00 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by "
    "PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated."
)
NPU_OOM = (
    "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 43.24 GiB total capacity; 40.39 GiB already "
    "allocated; 40.39 GiB current active; 764.23 MiB free; 41.00 GiB reserved in total by PyTorch)"
)


def failing(*lines: str) -> Failure:
    failure = read_log("\n".join([ARGS, *lines])).failure
    assert failure is not None
    return failure


def numbers(failure: Failure) -> dict[str, float]:
    return dict(failure.numbers)


CASES = [
    (
        "ValueError: To serve at least one request with the models's max seq len (4096), (1.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (0.58 GiB). Based on the available memory, the estimated "
        "maximum model length is 2368. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.",
        "start-context-too-long",
        Phase.KV_CACHE,
        {"max_model_len": 4096, "needed_gib": 1.0, "available_kv_gib": 0.58, "estimated_max_model_len": 2368},
        Change(field="max_model_len", value=2368),
    ),
    (
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
        "needed, "
        "which is larger than the available KV cache memory (16.0 GiB). Based on the available memory, the estimated "
        "maximum model length is 131056. Try increasing `gpu_memory_utilization` (which also controls CPU memory on "
        "the CPU backend) or decreasing `max_model_len` when initializing the engine.",
        "start-context-too-long",
        Phase.KV_CACHE,
        {
            "max_model_len": 131072,
            "needed_gib": 16,
            "available_kv_gib": 16,
            "estimated_max_model_len": 131056,
        },
        Change(field="max_model_len", value=131056),
    ),
    (  # 0.8.5 prints no estimate; 40960 * 2 / 5 = 16384
        "ValueError: To serve at least one request with the models's max seq len (40960), (5.00 GiB KV cache is "
        "needed, "
        "which is larger than the available KV cache memory (2.00 GiB).Based on the available memory,  Try increasing "
        "`gpu_memory_utilization`",
        "start-context-too-long",
        Phase.KV_CACHE,
        {"max_model_len": 40960, "needed_gib": 5.0, "available_kv_gib": 2.0},
        Change(field="max_model_len", value=16384),
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (8192), (1.00 GB KV cache is needed, "
        "which is larger than the available KV cache memory (0.50 GB). Try increasing",
        "start-context-too-long",
        Phase.KV_CACHE,
        {"max_model_len": 8192, "needed_gib": 1.0, "available_kv_gib": 0.5},
        Change(field="max_model_len", value=4096),
    ),
    (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in "
        "KV cache (19232). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
        "engine.",
        "start-context-exceeds-cache",
        Phase.KV_CACHE,
        {"max_model_len": 32768, "kv_tokens": 19232},
        Change(field="max_model_len", value=19232),
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing "
        "the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        "start-no-kv-memory",
        Phase.KV_CACHE,
        {},
        None,
    ),
    (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
        "increasing `gpu_memory_utilization`.",
        "start-auto-fit-failed",
        Phase.KV_CACHE,
        {},
        None,
    ),
    (  # 10.2 / 23.6 = 0.432
        "ValueError: Free memory on device (10.2/23.6 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, "
        "21.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "start-memory-taken",
        Phase.CONFIGURATION,
        {"free_gib": 10.2, "total_gib": 23.6, "utilization": 0.9, "requested_gib": 21.24},
        Change(field="gpu_memory_utilization", value=0.43),
    ),
    (
        "ValueError: Free memory on device cuda:1 (72.5/79.19 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 72.86 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "start-memory-taken",
        Phase.CONFIGURATION,
        {"free_gib": 72.5, "total_gib": 79.19, "utilization": 0.92, "requested_gib": 72.86},
        Change(field="gpu_memory_utilization", value=0.91),
    ),
    (
        "ValueError: Free memory on device cuda:0 (20.0/80.0 GiB) on startup is less than the engine's budget after "
        "excluding external process's weights (0.9, 30.0 GiB). Decrease GPU memory utilization",
        "start-memory-taken",
        Phase.CONFIGURATION,
        {"free_gib": 20.0, "total_gib": 80.0, "utilization": 0.9, "requested_gib": 30.0},
        Change(field="gpu_memory_utilization", value=0.25),
    ),
    (
        "ValueError: Externally held weights on device cuda:0 (40.0/80.0 GiB) exceed the desired GPU memory "
        "utilization "
        "(0.4, 32.0 GiB). Increase GPU memory utilization or reduce GPU memory used by other processes.",
        "start-external-weights",
        Phase.CONFIGURATION,
        {"external_gib": 40.0, "total_gib": 80.0, "utilization": 0.4, "requested_gib": 32.0},
        Change(field="gpu_memory_utilization", value=0.51),
    ),
    (
        "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free memory 71.2 GiB. This "
        "happens when other processes sharing the same container release GPU memory while vLLM is profiling",
        "start-profiling-disturbed",
        Phase.PROFILING,
        {"initial_gib": 70.1, "current_gib": 71.2},
        None,
    ),
    (
        "AssertionError: Error in memory profiling. Initial used memory 21474836480, currently used memory "
        "10737418240. "
        "This happens when the GPU memory was not properly cleaned up before initializing the vLLM instance.",
        "start-profiling-disturbed",
        Phase.PROFILING,
        {"initial_gib": 20.0, "current_gib": 10.0},
        None,
    ),
    (
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (299). Each decode sequence requires one "
        "Mamba cache block, so CUDA graph capture cannot proceed.",
        "start-too-few-state-blocks",
        Phase.GRAPH_CAPTURE,
        {"max_num_seqs": 1024, "blocks": 299},
        Change(field="max_num_seqs", value=299),
    ),
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        "start-oom-sampler",
        Phase.WARM_UP,
        {"max_num_seqs": 1024},
        Change(field="max_num_seqs", value=512),
    ),
    (
        "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
        "weights, increasing --tensor-parallel-size, or using --quantization. (original error: CUDA out of memory. "
        "Tried to allocate 896.00 MiB.)",
        "start-weights-do-not-fit",
        Phase.LOADING,
        {},
        Change(field="tensor_parallel_size", value=4),
    ),
    (
        "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len "
        "(max_position_embeddings=40960 or model_max_length=None in model's config.json). To allow overriding this "
        "maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        "start-above-model-length",
        Phase.CONFIGURATION,
        {"max_model_len": 65536, "derived_max_model_len": 40960},
        Change(field="max_model_len", value=40960),
    ),
    (
        "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (32768). This effectively limits the "
        "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences.",
        "start-batch-below-length",
        Phase.CONFIGURATION,
        {"max_num_batched_tokens": 2048, "max_model_len": 32768},
        Change(field="max_num_batched_tokens", value=32768),
    ),
    (
        "ValueError: max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256).",
        "start-batch-below-sequences",
        Phase.CONFIGURATION,
        {"max_num_batched_tokens": 128, "max_num_seqs": 256},
        Change(field="max_num_seqs", value=128),
    ),
    (
        "NotImplementedError: Layer model.layers.3.attn: page size is not divisible by the maximum page size "
        "and cannot "
        "be padded",
        "start-pages-not-unifiable",
        Phase.KV_CACHE,
        {},
        None,
    ),
    (
        "NotImplementedError: The page size of the layer is not divisible by the maximum page size. Cannot unify by "
        "adjusting block_size.",
        "start-pages-not-unifiable",
        Phase.KV_CACHE,
        {},
        None,
    ),
    (
        "ValueError: KV cache layout NHD cannot express this model's mixed page sizes ([16384, 32768]); a "
        "backend should",
        "start-pages-not-unifiable",
        Phase.KV_CACHE,
        {},
        None,
    ),
    (
        "ValueError: Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type.",
        "start-hybrid-manager-needed",
        Phase.KV_CACHE,
        {},
        Change(field="disable_hybrid_kv_cache_manager", value=False),
    ),
    (
        "AssertionError: In Mamba cache align mode, block_size (2096) must be <= max_num_batched_tokens (2048).",
        "start-block-above-batch",
        Phase.CONFIGURATION,
        {"block_size": 2096, "max_num_batched_tokens": 2048},
        Change(field="max_num_batched_tokens", value=2096),
    ),
    (
        "AssertionError: Workspace is locked but allocation from 'deep_gemm_moe.py:236:apply' requires 12.50 "
        "MB, current "
        "size is 8.00 MB. Workspace growth is not allowed after locking.",
        "start-workspace-locked",
        Phase.GRAPH_CAPTURE,
        {"required_gib": 12.5 / 1024, "current_gib": 8 / 1024},
        None,
    ),
    (  # 28 = 2 * 2 * 7: the largest power of two in it is 4
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        "start-heads-not-divisible",
        Phase.CONFIGURATION,
        {"heads": 28, "tensor_parallel_size": 8},
        Change(field="tensor_parallel_size", value=4),
    ),
    (
        "AssertionError: Some layers are not assigned to any group.",
        "start-layers-not-grouped",
        Phase.KV_CACHE,
        {},
        None,
    ),
]


@pytest.mark.parametrize(("line", "code", "phase", "expected", "change"), CASES)
def test_error_is_recognised(
    line: str, code: str, phase: Phase, expected: dict[str, float], change: Change | None
) -> None:
    failure = failing(f"(EngineCore pid=9) ERROR 08-01 10:00:40 [core.py:700] {line}")
    assert (failure.code, failure.phase, failure.change) == (code, phase, change)
    assert numbers(failure) == pytest.approx(expected)
    assert failure.line_number == 2
    assert failure.rank == "EngineCore"


@pytest.mark.parametrize(("line", "code", "phase", "expected", "change"), CASES)
def test_explanation_has_all_its_numbers(
    line: str, code: str, phase: Phase, expected: dict[str, float], change: Change | None
) -> None:
    notice = failing(line).notice
    assert "{" not in notice.message
    assert "{" not in notice.next_step


def test_explanation_in_plain_words() -> None:
    notice = failing(CASES[0][0]).notice
    assert notice.message == (
        "one request of 4096 tokens needs 1 GiB of KV cache, and only 0.58 GiB are left"
    )
    assert notice.next_step.startswith("lower --max-model-len")


def test_every_code_has_words() -> None:
    assert {error.code for error in ERRORS.load().error} <= set(MESSAGES)


@pytest.mark.parametrize(
    ("before", "code", "phase", "change"),
    [
        ([], "start-oom", Phase.UNKNOWN, None),
        ([LOADING], "start-oom-loading", Phase.LOADING, Change(field="tensor_parallel_size", value=4)),
        (
            [LOADING, LOADED],
            "start-oom-profiling",
            Phase.PROFILING,
            Change(field="max_num_batched_tokens", value=4096),
        ),
        (
            [LOADING, LOADED, AVAILABLE.format(30.0)],
            "start-oom-graphs",
            Phase.GRAPH_CAPTURE,
            Change(field="gpu_memory_utilization", value=0.88),
        ),
        (
            [LOADING, LOADED, AVAILABLE.format(30.0), CAPTURED],
            "start-oom-warm-up",
            Phase.WARM_UP,
            Change(field="max_num_seqs", value=128),
        ),
        (
            [LOADING, LOADED, AVAILABLE.format(30.0), CAPTURED, READY],
            "start-oom-running",
            Phase.RUN_TIME,
            Change(field="gpu_memory_utilization", value=0.88),
        ),
    ],
)
def test_out_of_memory_is_explained_by_the_phase(
    before: list[str], code: str, phase: Phase, change: Change | None
) -> None:
    # 0.9 - (1.50 - 0.50) / 79.19 = 0.8874
    failure = failing(*before, TORCH_OOM.format("1.50 GiB", "512.00 MiB"))
    assert (failure.code, failure.phase, failure.change) == (code, phase, change)
    assert numbers(failure) == {"tried_gib": 1.5, "total_gib": 79.19, "free_gib": 0.5}


def test_npu_out_of_memory_after_the_cache() -> None:
    # 0.9 - (2.00 - 764.23 / 1024) / 43.24 = 0.871
    failure = failing(LOADED, AVAILABLE.format(17.3), NPU_OOM)
    assert (failure.code, failure.change) == (
        "start-oom-graphs",
        Change(field="gpu_memory_utilization", value=0.87),
    )


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.00 GiB already "
        "allocated; 12.19 MiB free; 22.00 GiB reserved in total by PyTorch)",
        "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 31.86 GiB of which 1.00 "
        "GiB is free.",
        "XPU out of memory. Tried to allocate 512.00 MiB.",
        "RuntimeError: CUDA error: out of memory",
        "#umsg#Memory not enough:#umsg#Device(id:0) memory isn't enough and alloc failed, kernel name: "
        "Default/MatMul-op1, alloc size: 268435456B.",
    ],
)
def test_errors_of_other_allocators_are_out_of_memory(text: str) -> None:
    assert failing(LOADING, text).code == "start-oom-loading"


def test_mindspore_allocation_size() -> None:
    text = (
        "Device(id:0) memory isn\u2019t enough and alloc failed, kernel name: Default/MatMul-op1, alloc size: "
        "268435456B."
    )
    assert failing(text).number("tried_gib") == 0.25


def test_the_cause_comes_before_its_consequences() -> None:
    log = read_log(
        "\n".join(
            [
                ARGS,
                LOADED,
                AVAILABLE.format(2.0),
                TORCH_OOM.format("1.00 GiB", "0 bytes"),
                CASES[14][0],
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            ]
        )
    )
    assert [failure.code for failure in log.failures] == [
        "start-oom-sampler",
        "start-oom-graphs",
        "start-failed",
    ]


def test_a_failure_without_a_known_cause_has_a_notice() -> None:
    failure = failing("RuntimeError: Engine core initialization failed. See root cause above.")
    assert failure.code == "start-failed"


GAVE_UP = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}"
)
WORKER = "(Worker_TP2 pid=77) ERROR 11-21 10:00:20 [multiproc_executor.py:597] "


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        (
            [
                WORKER
                + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
                "NCCLUtils.cpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
                GAVE_UP,
            ],
            "start-collectives",
            2,
        ),
        ([WORKER + "RuntimeError: NCCL error: unhandled cuda error", GAVE_UP], "start-collectives", 2),
        (
            [
                "RuntimeError: create:build/torch_npu.dir/compiler_depend.ts:89 HCCL function error: "
                "HcclCommInitRootInfo(numRanks, &rootInfo, rank, &(comm->hcclComm_)), error code is 7"
            ],
            "start-collectives-npu",
            2,
        ),
        (
            [
                WORKER + "Traceback (most recent call last):",
                WORKER + "RuntimeError: CUDA error: no kernel image is available for execution on the device",
                "(EngineCore_DP0 pid=4) ERROR 11-21 10:00:21 [core.py:708] EngineCore failed to start.",
                GAVE_UP,
            ],
            "start-no-kernel-image",
            3,
        ),
        (
            [
                "OSError: You are trying to access a gated repo.",
                "Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.3-70B-Instruct.",
                "401 Client Error. (Request ID: Root=1-6)",
                "Cannot access gated repo for url https://huggingface.co/meta-llama/x/resolve/main/config.json.",
                "ValueError: Invalid repository ID or local directory specified: 'meta-llama/x'.",
            ],
            "start-model-gated",
            2,
        ),
        (
            [
                "(APIServer pid=1) OSError: Qwen/Qwen3-32Bx is not a local folder and is not a valid model identifier "
                "listed on 'https://huggingface.co/models'"
            ],
            "start-model-not-found",
            2,
        ),
        (
            ["ValueError: Model architectures ['NewForCausalLM'] are not supported for now. Supported: x"],
            "start-architecture-unknown",
            2,
        ),
    ],
)
def test_root_cause_that_is_not_memory(lines: list[str], code: str, number: int) -> None:
    failure = failing(*lines)
    assert (failure.code, failure.line_number, failure.change) == (code, number, None)


def test_out_of_memory_is_the_cause_of_later_errors_of_other_ranks() -> None:
    nccl = WORKER + "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, remote process exited"
    assert failing(LOADING, TORCH_OOM.format("1.50 GiB", "512.00 MiB"), nccl).code == "start-oom-loading"


@pytest.mark.parametrize(
    ("lines", "number", "rank"),
    [
        (
            [
                WORKER + "Traceback (most recent call last):",
                WORKER + '    raise ValueError("x")',
                WORKER + "ImportError: libcudart.so.12: cannot open shared object file",
                "(EngineCore_DP0 pid=4) ERROR 11-21 10:00:21 [core.py:708] EngineCore failed to start.",
                "(EngineCore_DP0 pid=4) ERROR 11-21 10:00:21 [core.py:708] Exception: WorkerProc initialization "
                "failed due to an exception in a background process. See stack trace for root cause.",
                GAVE_UP,
                "asyncio.exceptions.CancelledError: shut down",
            ],
            4,
            "Worker_TP2",
        ),
        (
            [
                "Traceback (most recent call last):",
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, The checkpoint you are trying to load has model type `x` [type=value_error]",
            ],
            4,
            "",
        ),
    ],
)
def test_an_unknown_error_is_quoted(lines: list[str], number: int, rank: str) -> None:
    failure = failing(*lines)
    assert (failure.code, failure.line_number, failure.rank) == ("start-other-error", number, rank)
    assert failure.line == [ARGS, *lines][number - 1].strip()


def test_a_traceback_that_the_start_outlived_is_no_failure() -> None:
    assert (
        read_log("\n".join([ARGS, "Traceback (most recent call last):", "OSError: x", LOADED])).failure
        is None
    )


def test_missing_memory_becomes_utilization_or_ranks() -> None:
    total = (
        "Free memory on device (78.0/80.0 GiB) on startup. Desired GPU memory utilization is (0.9, 72.0 GiB)."
    )
    error = "ValueError: No available memory for the cache blocks."
    # 0.9 + 1.6 / 80 = 0.92: at 0.93 something is left; 8 GiB short is beyond 0.95
    assert failing(total, AVAILABLE.format(-1.6), error).change == Change(
        field="gpu_memory_utilization", value=0.93
    )
    assert failing(total, AVAILABLE.format(-8.0), error).change == Change(
        field="tensor_parallel_size", value=4
    )


def test_published_starts_that_failed() -> None:
    # Qwen3-32B on one card of 95.01 GiB at 0.426 (0.27.1), and Qwen3-14B on a 32 GB virtual NPU
    for value in (-24.42, -0.87):
        log = read_log("\n".join([LOADED, AVAILABLE.format(value), CASES[5][0]]))
        assert log.failure is not None
        assert log.failure.code == "start-no-kv-memory"
        assert log.worst_rank.available_kv_gib is not None
        assert log.worst_rank.available_kv_gib.value == value


def test_the_source_of_an_error_in_a_traceback_is_not_the_error() -> None:
    text = (
        'f"To serve at least one request with the model\'s max seq len "\n f"({max_model_len}), '
        '({needed_memory} GiB KV "'
    )
    assert read_log(LOADED + "\n" + text).failure is None


def test_an_advice_about_free_memory_is_no_failure() -> None:
    text = "Free memory on device (78.57/79.18 GiB) on startup. Desired GPU memory utilization is (0.9, 71.26 GiB)."
    assert read_log(text).failure is None


def test_errors_of_an_earlier_start_are_forgotten() -> None:
    init = "(EngineCore pid={}) INFO 08-01 [core.py:77] Initializing a V1 LLM engine (v0.19.0) with config: model='m', "
    log = read_log("\n".join([init.format(5), CASES[5][0], init.format(6), LOADED, AVAILABLE.format(20.0)]))
    assert log.failure is None
    assert [notice.code for notice in log.notices] == ["log-several-starts"]


TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (131072), ({needed} GiB KV cache is "
    "needed, which is larger than the available KV cache memory ({left} GiB). Based on the available memory, the "
    "estimated maximum model length is 17088."
)


@pytest.mark.parametrize(
    ("needed", "left", "dtype", "is_enough"),
    [
        ("20.00", "2.61", "auto", False),  # 10 GiB as fp8
        ("20.00", "10.00", "auto", True),
        ("20.00", "12.00", "fp8", False),  # it is fp8 already
        ("5.62", "5.14", "bfloat16", True),
    ],
)
def test_fp8_is_advised_only_where_half_the_memory_is_available(
    needed: str, left: str, dtype: str, is_enough: bool
) -> None:
    flags = f"non-default args: {{'model': 'Qwen/Qwen3-8B', 'kv_cache_dtype': '{dtype}'}}"
    failure = failing(flags, TOO_LONG.format(needed=needed, left=left))
    assert ("fp8" in failure.notice.next_step) is is_enough
    assert "--max-model-len" in failure.notice.next_step
    assert failure.code == "start-context-too-long"


def test_numbers_of_an_error_are_figures_where_no_line_gives_them() -> None:
    error = TOO_LONG.format(needed="20.00", left="2.61")
    alone = read_log(error)
    assert alone.worst_rank.available_kv_gib.value == 2.61
    assert (alone.figures.model_len.value, alone.readings[0].line_number) == (131072, 1)
    assert "available_kv_gib" not in alone.missing
    both = read_log(f"(Worker_TP0 pid=7) INFO Available KV cache memory: 2.6148 GiB\n{error}")
    assert both.worst_rank.available_kv_gib.value == 2.6148
    assert len(both.ranks) == 1
