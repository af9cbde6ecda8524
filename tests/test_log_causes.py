"""Starts of other people, each cut down to the lines that decide: figures, engine, card, phase and cause."""

from __future__ import annotations

import pytest

from kvcore.evidence.log.failures import Change
from kvcore.evidence.log.phases import Phase
from kvcore.evidence.log.reader import StartupLog, read_log
from kvcore.evidence.log_report import log_report, log_table
from kvcore.evidence.recognized import request_from, scenario_from_log
from kvcore.wire.request import scenario_from_request

ENGINE = "(EngineCore pid=42) "
FRAME = ENGINE + 'ERROR 04-26 12:05:05 [core.py:1108]   File "/x/vllm/v1/worker/{}.py", line 7, in {}'
OOM = (
    ENGINE
    + "ERROR 04-26 12:05:05 [core.py:1108] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "1.02 GiB. GPU 0 has a total capacity of 14.56 GiB of which 111.81 MiB is free."
)
ARGS = (
    "(APIServer pid=1) INFO 04-26 12:03:17 [utils.py:233] non-default args: {'model': 'Qwen/Qwen2.5-7B-Instruct', "
    "'max_model_len': 4096, 'gpu_memory_utilization': %s}"
)
LOADED = (
    ENGINE
    + "INFO 04-26 12:04:51 [gpu_model_runner.py:4820] Model loading took {} GiB memory and 53.5 seconds"
)
SIZED = ENGINE + "INFO 04-26 12:04:59 [gpu_worker.py:436] Available KV cache memory: 3.00 GiB"
CAPTURED = (
    ENGINE
    + "INFO 04-26 12:05:01 [gpu_model_runner.py:6046] Graph capturing finished in 31 secs, took 1.02 GiB"
)
INITIALISED = (
    ENGINE
    + "INFO 04-26 12:05:02 [core.py:282] init engine (profile, create kv cache, warmup model) took 44.98 s"
)
AUTOTUNING = (
    ENGINE
    + "ERROR 04-26 12:05:05 [core.py:1108] torch._inductor.exc.InductorError: RuntimeError: Failed to run "
    "autotuning code block: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 14.56 GiB of "
    "which 111.81 MiB is free."
)


def read(*lines: str) -> StartupLog:
    return read_log("\n".join(lines))


def cause(*lines: str) -> tuple[str, Phase, Change | None]:
    failure = read(*lines).failure
    assert failure is not None
    return failure.code, failure.phase, failure.change


def test_a_first_start_that_died_of_the_copy_of_its_embedding_table() -> None:
    """152,064 × 3,584 × 2 bytes are 1.015 GiB. 14.25 GiB of weights are above 0.85 × 14.56: eager mode fails too."""
    log = read(ARGS % 0.85, LOADED.format(14.25), AUTOTUNING.format(1.02))
    assert log.failure is not None
    assert (log.failure.code, log.failure.phase) == ("start-oom-embedding-copy", Phase.PROFILING)
    assert log.failure.change == Change(field="tensor_parallel_size", value=2)
    assert "1.02 GiB" in log.failure.notice.message
    assert "a smaller batch does not help" in log.failure.notice.next_step
    (above,) = (notice for notice in log.notices if notice.code == "log-weights-above-budget")
    assert "12.38" in above.message


def test_where_the_weights_fit_a_start_without_compiling_helps() -> None:
    assert cause(ARGS % 0.95, LOADED.format(13.0), AUTOTUNING.format(1.02)) == (
        "start-oom-embedding-copy",
        Phase.PROFILING,
        Change(field="enforce_eager", value=True),
    )


def test_another_tensor_than_the_table_is_not_called_one() -> None:
    assert cause(ARGS % 0.95, LOADED.format(13.0), AUTOTUNING.format(0.61))[0] == "start-oom-compiling"


@pytest.mark.parametrize(
    ("before", "code", "phase"),
    [
        ((FRAME.format("gpu_worker", "load_model"),), "start-oom-loading", Phase.LOADING),
        (
            (
                FRAME.format("gpu_worker", "determine_available_memory"),
                FRAME.format("gpu_model_runner", "profile_run"),
            ),
            "start-oom-profiling",
            Phase.PROFILING,
        ),
        (
            (
                FRAME.format("gpu_worker", "compile_or_warm_up_model"),
                FRAME.format("gpu_model_runner", "capture_model"),
                FRAME.format("gpu_model_runner", "_dummy_run"),
            ),
            "start-oom-graphs",
            Phase.GRAPH_CAPTURE,
        ),
        ((FRAME.format("gpu_worker", "compile_or_warm_up_model"),), "start-oom-warm-up", Phase.WARM_UP),
        ((FRAME.format("gpu_worker", "execute_model"),), "start-oom-running", Phase.RUN_TIME),
    ],
)
def test_a_traceback_alone_tells_the_phase(before: tuple[str, ...], code: str, phase: Phase) -> None:
    assert cause(ARGS % 0.9, *before, OOM)[:2] == (code, phase)


def test_the_batch_that_the_engine_printed_is_halved() -> None:
    printed = "(APIServer pid=1) INFO [scheduler.py:238] Chunked prefill is enabled with max_num_batched_tokens=8192."
    profile = (FRAME.format("gpu_model_runner", "profile_run"), OOM)
    assert cause(ARGS % 0.9, printed, *profile)[2] == Change(field="max_num_batched_tokens", value=4096)


def test_the_traceback_of_one_rank_counts_more_than_the_progress_of_another() -> None:
    assert (
        cause(ARGS % 0.9, LOADED.format(6.0), FRAME.format("gpu_worker", "load_model"), OOM)[1]
        is Phase.LOADING
    )


@pytest.mark.parametrize("lines", [(LOADED.format(6.0), SIZED, CAPTURED), (LOADED.format(6.0), SIZED)])
def test_a_death_in_service_is_no_death_in_warm_up(lines: tuple[str, ...]) -> None:
    """Without a server there is no "Application startup complete"; in eager mode nothing is captured."""
    assert cause(ARGS % 0.9, *lines, INITIALISED, OOM)[:2] == ("start-oom-running", Phase.RUN_TIME)
    assert cause(ARGS % 0.9, *lines, OOM)[1] in (Phase.WARM_UP, Phase.GRAPH_CAPTURE)


def test_an_engine_that_died_in_service_of_something_else() -> None:
    log = read(
        ARGS % 0.9,
        LOADED.format(6.0),
        SIZED,
        INITIALISED,
        ENGINE + "ERROR 04-26 13:00:00 [core.py:700] EngineCore encountered a fatal error.",
        ENGINE + "ERROR 04-26 13:00:00 [core.py:700] Traceback (most recent call last):",
        ENGINE
        + "ERROR 04-26 13:00:00 [core.py:700] RuntimeError: CUDA error: an illegal memory access was encountered",
        "(APIServer pid=1) ERROR 04-26 13:00:00 [async_llm.py:480] AsyncLLM output_handler failed.",
        "(APIServer pid=1) ERROR 04-26 13:00:00 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: "
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "(APIServer pid=1) INFO:     Shutting down",
    )
    assert log.failure is not None
    assert (log.failure.code, log.failure.phase) == ("start-other-error", Phase.RUN_TIME)
    assert "illegal memory access" in log.failure.line


SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
    "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)


def test_the_sampler_may_run_out_in_the_profile_run_or_in_the_warm_up() -> None:
    in_profile = (FRAME.format("gpu_model_runner", "profile_run"), ENGINE + SAMPLER)
    assert cause(ARGS % 0.9, LOADED.format(6.0), *in_profile) == (
        "start-oom-sampler-profile",
        Phase.PROFILING,
        Change(field="max_num_seqs", value=512),
    )
    assert cause(ARGS % 0.9, LOADED.format(6.0), SIZED, CAPTURED, ENGINE + SAMPLER)[:2] == (
        "start-oom-sampler",
        Phase.WARM_UP,
    )


def test_the_card_is_the_one_whose_capacity_an_error_names() -> None:
    """Four L40S: the sampler's 1,024 × 151,936 logits in 32 bits are 594 MiB."""
    tried = (
        "(Worker_TP2 pid=203) ERROR 06-22 08:16:44 [multiproc_executor.py:870] torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 594.00 MiB. GPU 2 has a total capacity of 44.39 GiB of which 212.31 MiB is free."
    )
    log = read(ARGS % 0.97, LOADED.format(6.0), SIZED, CAPTURED, tried, ENGINE + SAMPLER)
    total = log.worst_rank.total_gib
    assert (total.value, total.line_number) == (44.39, 5)
    assert request_from(log)["accelerator"]["memory_gib"] == 44.39
    assert log.failure is not None
    assert log.failure.numbers["tried_gib"] == pytest.approx(594 / 1024)
    assert log.failure.numbers["max_num_seqs"] == 1024


@pytest.mark.parametrize(
    "line",
    [
        "capture_begin:compiler_depend.ts:214 NPU function error: c10_npu::acl::AclmdlRICaptureBegin(capture_stream_, "
        "capture_mode), error code is 207005",
        "[SqCqManage]Alloc sq cq fail, stream_id=1984, retCode=0x7020023.[FUNC:Setup][FILE:stream.cc][LINE:1]",
        "New capture stream failed, stream_id=1987, event_id=[-1->70037].[FUNC:GetCaptureStream]",
        "stream wait event failed, runtime result = 207005[FUNC:ReportCallError][FILE:log_inner.cpp][LINE:148]",
    ],
)
def test_an_npu_without_streams_does_not_lack_memory(line: str) -> None:
    log = read(
        ARGS % 0.9, f"(Worker_TP3 pid=7) ERROR 04-20 21:27:00 [multiproc_executor.py:932] {line}",
        "(Worker_TP3 pid=7) [Error]: Failed to apply for memory.",
    )  # fmt: skip
    assert (log.engine, log.vendor) == ("vllm-ascend", "huawei")
    assert log.failure is not None
    assert (log.failure.code, log.failure.phase) == ("start-npu-streams", Phase.GRAPH_CAPTURE)
    assert log.failure.change == Change(field="cudagraph_mode", value="FULL_DECODE_ONLY")
    assert "no lack of memory" in log.failure.notice.message


def test_graphs_of_the_whole_model_that_still_find_no_stream() -> None:
    flags = "non-default args: {'model': 'm', 'compilation_config': {'cudagraph_mode': 'FULL_DECODE_ONLY'}}"
    assert cause(flags, "Alloc sq cq fail, stream_id=1984")[2] == Change(field="enforce_eager", value=True)


def test_lines_that_only_vllm_ascend_prints() -> None:
    old = read("(Worker_DP0_TP0_EP0 pid=9) INFO 10-27 11:59:15 [worker_v1.py:234] Available memory: 11381826560, total "
               "memory: 65452113920")  # fmt: skip
    assert (old.engine, old.vendor, old.worst_rank.total_gib.value) == ("vllm-ascend", "huawei", 60.95703125)
    new = read(
        "(Worker_TP1 pid=315) INFO 07-14 06:34:42 [worker.py:566] ACL graph memory profiling is enabled (default "
        "since v0.22.1). The current --gpu-memory-utilization=0.9200 is equivalent to --gpu-memory-utilization=0.8847 "
        "without ACL graph memory profiling."
    )
    assert (new.engine, new.figures.utilization.value, new.charges_graph_estimate) == (
        "vllm-ascend",
        0.92,
        True,
    )


NO_MEMORY = (
    "(EngineCore_DP0 pid=4) ERROR 01-15 [core.py:843] ValueError: No available memory for the cache blocks."
)
IN_BYTES = (
    "(EngineCore_DP0 pid=4) INFO 01-15 [worker_v1.py:270] Available memory: 0, total memory: 65452113920"
)


def test_another_process_beside_an_older_vllm_ascend() -> None:
    assert cause(IN_BYTES, NO_MEMORY) == ("start-no-kv-memory-shared", Phase.KV_CACHE, None)
    assert cause("vLLM API server version 0.18.0", IN_BYTES, NO_MEMORY)[0] == "start-no-kv-memory"
    assert cause("vLLM API server version 0.13.0", NO_MEMORY)[0] == "start-no-kv-memory"  # vLLM itself


def test_the_share_beside_another_process_that_npu_smi_shows() -> None:
    """30.3 GiB of 60.96 beside 0.4 of the card: 0.9."""
    table = (
        "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |\n"
        "| Chip    Phy-ID                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |\n"
        "| 0       910B3                 | OK              | 93.9         36                0    / 0              |\n"
        "| 0                             | 0000:C1:00.0    | 0            0    / 0          34120/ 65536          |\n"
    )
    flags = "non-default args: {'model': 'm', 'gpu_memory_utilization': 0.4}"
    code, _, change = cause(table, flags, IN_BYTES, NO_MEMORY)
    assert (code, change) == ("start-no-kv-memory-shared", Change(field="gpu_memory_utilization", value=0.9))


INIT = (
    "(EngineCore pid=163) INFO 06-04 05:34:{} [core.py:112] Initializing a V1 LLM engine (v0.22.0) with config: "
    "model='m', "
)


def test_a_notebook_that_prints_each_line_twice_has_one_start() -> None:
    lines = (
        "non-default args: {'model': 'm', 'gpu_memory_utilization': 0.85}",
        INIT.format(22),
        INIT.format(22),
        LOADED.format(7.71),
        LOADED.format(7.71),
    )
    log = read(*(f"{331.5 + at / 10:.1f}s {304 + at} {line}" for at, line in enumerate(lines)))
    assert [notice.code for notice in log.notices] == ["log-ends-early"]
    assert (log.flags.gpu_memory_utilization, log.worst_rank.weights_gib.value) == (0.85, 7.71)
    twice = read(lines[0], INIT.format(22), LOADED.format(7.5), INIT.format(58), LOADED.format(7.71), SIZED)
    assert [notice.code for notice in twice.notices] == ["log-several-starts"]


@pytest.mark.parametrize(
    "prefix",
    [
        "295.4s 290 ",
        "2026-06-04T05:33:46.123456789Z ",
        "2026-06-04T05:33:46.123456789Z stderr F ",
        "2026-06-04T05:33:46.123+02:00 stdout P ",
        "[pod/llm-7c9f/vllm] ",
        "Jun 04 05:33:46 node-7 vllm[812]: ",
        "llm-1  | ",
    ],
)
def test_what_stands_before_a_line_is_not_part_of_an_error(prefix: str) -> None:
    lines = (
        "Traceback (most recent call last):",
        "ImportError: libcudart.so.12: cannot open shared object file",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    failure = read_log("\n".join(prefix + line for line in (ARGS % 0.9, *lines))).failure
    assert failure is not None
    assert (failure.code, failure.line_number) == ("start-other-error", 3)


def test_blocks_laid_out_to_profile_graphs_are_not_those_of_the_cache() -> None:
    line = (
        ENGINE
        + "INFO 05-02 13:34:47 [kv_cache_utils.py:829] Overriding num_gpu_blocks={} with num_gpu_blocks_override=512"
    )
    assert read(line.format(0), SIZED).figures.num_gpu_blocks is None
    assert read(line.format(9000), SIZED).figures.num_gpu_blocks.value == 512


def test_a_log_that_was_cut_says_so() -> None:
    assert [one.code for one in read(ARGS % 0.9, LOADED.format(6.0)).notices] == ["log-ends-early"]
    assert not read(ARGS % 0.9, LOADED.format(6.0), SIZED).notices
    assert not read(ARGS % 0.9).notices  # a command's flags, no start


@pytest.mark.parametrize(
    ("line", "name", "vendor"),
    [
        (
            "(APIServer pid=1) WARNING 04-26 12:03:38 [model.py:1963] Your device 'Tesla T4' (with compute capability "
            "7.5) doesn't support torch.bfloat16. Falling back to torch.float16 for compatibility.",
            "Tesla T4",
            None,
        ),
        (
            "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-00000000-0000-0000-0000-000000000000)",
            "Tesla V100-SXM2-32GB",
            None,
        ),
        ("INFO 08-07 17:01:05 [__init__.py:244] Automatically detected platform rocm.", None, "amd"),
        ("INFO 08-07 17:01:05 [__init__.py:216] Automatically detected platform cuda.", None, "nvidia"),
    ],
)
def test_the_card_and_its_vendor(line: str, name: str | None, vendor: str | None) -> None:
    log = read(line, ARGS % 0.9)
    assert (log.card_name, log.vendor) == (name, vendor)


def test_a_start_on_a_card_that_an_error_names_is_compared_with_that_card() -> None:
    report = log_report(read(ARGS % 0.95, LOADED.format(13.0), AUTOTUNING.format(1.02)))
    assert report["request"]["accelerator"]["memory_gib"] == 14.56
    assert not [one for one in report["comparison"]["notices"] if one["code"] == "cause-unnamed-card"]


def guess(*lines: str) -> list[str]:
    found = log_report(read(*lines))["card_guess"]
    return [] if found is None else found["cards"]


KAGGLE = (
    "INFO 06-04 05:33:46 [utils.py:278] non-default args: {'dtype': 'half', 'max_model_len': 8192, 'tensor_parallel_"
    "size': 2, 'gpu_memory_utilization': 0.85, 'enforce_eager': True, 'model': 'Qwen/Qwen3-8B'}",
    "(EngineCore pid=163) INFO 06-04 [core.py:112] Initializing a V1 LLM engine (v0.22.0) with config: model='x', ",
    "(Worker_TP0 pid=189) INFO 06-04 05:35:13 [model_runner.py:295] Model loading took 7.71 GiB and 34.790847 seconds",
    "(Worker_TP0 pid=189) INFO 06-04 05:35:33 [gpu_worker.py:466] Available KV cache memory: 3.92 GiB",
)
LLAMA = (
    "vLLM API server version 0.11.0",
    "non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 32000, "
    "'gpu_memory_utilization': 0.92, 'max_num_seqs': 128}",
    "(EngineCore_DP0 pid=4671) INFO 10-14 19:25:01 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 132 s",
    "(EngineCore_DP0 pid=4671) INFO 10-14 19:25:50 [gpu_worker.py:298] Available KV cache memory: 4.75 GiB",
)


def test_cards_are_guessed_from_utilization_weights_and_pool() -> None:
    """Two T4 at 0.85: 7.71 + 3.92 GiB and what a forward pass takes are 85 % of 14.6 GiB; 22 GiB at 0.92."""
    assert set(guess(*KAGGLE)) == {"A16-16GB", "A2-16GB", "T4-16GB"}
    without_ampere = "symm_mem.py: SymmMemCommunicator: Device capability 7.5 not supported, not available."
    assert guess(*KAGGLE, without_ampere) == ["T4-16GB"]
    assert set(guess(*LLAMA)) == {"A10-24GB", "A10G-24GB", "L4-24GB"}


def test_a_guess_is_no_fact() -> None:
    report = log_report(read(*LLAMA))
    assert "accelerator" not in report["request"]
    assert [one["code"] for one in report["comparison"]["notices"]] == ["cause-no-card"]
    assert [part["part"] for part in report["comparison"]["parts"]] == ["weights"]
    assert "this is a guess" in report["card_guess"]["next_step"]


def test_no_card_is_guessed_for_one_that_the_log_names_or_that_none_fits() -> None:
    assert guess(*LLAMA, "Your device 'NVIDIA L4' (with compute capability 8.9)") == []
    assert guess(*LLAMA[:3]) == []
    other = [line.replace("4.75", "10.30") for line in LLAMA]  # 28.2 GiB: no card has that
    assert guess(*other) == []


def test_an_ascend_log_is_never_compared_with_an_nvidia_card() -> None:
    current = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
    log = read(ARGS % 0.9, "NPUModelRunner init failed, error code is 207005")
    found = scenario_from_log(log, current).scenario
    assert (found.engine, found.accelerator and found.accelerator.vendor) == ("vllm-ascend", "huawei")


def test_the_text_says_of_each_figure_its_unit_and_line() -> None:
    lines = log_table(log_report(read(ARGS % 0.9, LOADED.format(14.25), SIZED, INITIALISED, OOM)))
    assert "weights_gib                      14.25 GiB       line 2, EngineCore 42" in lines
    assert "available_kv_gib                     3 GiB       line 3, EngineCore 42" in lines
    assert "it died in service: " in lines
