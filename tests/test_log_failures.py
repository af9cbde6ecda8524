"""Every error of a failing start: recognised, put in its phase, explained, and answered with a change."""

from pathlib import Path

import msgspec
import pytest
from msgspec import Struct, field

from kvcore.base.errors import MESSAGES
from kvcore.evidence.log.failures import ERRORS, Change, Failure
from kvcore.evidence.log.phases import Phase
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


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One error of a failing start, and what is read from it."""

    line: str
    code: str
    phase: Phase
    numbers: dict[str, float] = field(default_factory=dict)
    change: Change | None = None


CASES = msgspec.toml.decode(
    (Path(__file__).parent / "data" / "log_failures.toml").read_text("utf-8"),
    type=dict[str, tuple[Case, ...]],
)["case"]


@pytest.mark.parametrize("case", CASES)
def test_error_is_recognised(case: Case) -> None:
    failure = failing(f"(EngineCore pid=9) ERROR 08-01 10:00:40 [core.py:700] {case.line}")
    assert (failure.code, failure.phase, failure.change) == (case.code, case.phase, case.change)
    assert numbers(failure) == pytest.approx(case.numbers)
    assert failure.line_number == 2
    assert failure.rank == "EngineCore"


@pytest.mark.parametrize("case", CASES)
def test_explanation_has_all_its_numbers(case: Case) -> None:
    notice = failing(case.line).notice
    assert "{" not in notice.message
    assert "{" not in notice.next_step


def test_explanation_in_plain_words() -> None:
    notice = failing(CASES[0].line).notice
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
                CASES[14].line,
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
        log = read_log("\n".join([LOADED, AVAILABLE.format(value), CASES[5].line]))
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
    log = read_log("\n".join([init.format(5), CASES[5].line, init.format(6), LOADED, AVAILABLE.format(20.0)]))
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
