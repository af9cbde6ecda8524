"""Output of Ascend machines around a start: `npu-smi info`, errors of CANN and HCCL."""

from __future__ import annotations

import pytest

from kvcore.base.words import Language, words
from kvcore.evidence.log.phases import Phase
from kvcore.evidence.log.reader import StartupLog, read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.wire.request import scenario_from_request

HEAD = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0.3                 Version: 24.1.0.3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
"""
CHIP = """\
| {card}     {name:<18}     | OK            | 96.4        37                0    / 0             |
| 0                         | 0000:C{card}:00.0  | 0           0    / 0          {used:<5}/ {total:<6}        |
+===========================+===============+====================================================+
"""
PROCESSES = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
"""
BUSY = "| 0       0                 | 632268        | python3.1                | 27301                   |\n"
NONE = "| No running processes found in NPU {} |\n"
A3 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 7     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     14                  | 0000:9D:00.0  | 0           0    / 0          3416 / 65536         |
| 7     Ascend910           | OK            | -           35                0    / 0             |
| 1     15                  | 0000:83:00.0  | 0           0    / 0          31877/ 65536         |
"""
SERVE = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n"
READY = "INFO 07-01 [worker.py:298] Available KV cache memory: 30.80 GiB\n"
FREE = (
    "ValueError: Free memory on device (27.9/60.96 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 54.87 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
)


def table(*used: int, total: int = 65536, name: str = "910B2", processes: str = "") -> str:
    chips = (CHIP.format(card=card, name=name, used=one, total=total) for card, one in enumerate(used))
    return HEAD + "".join(chips) + PROCESSES + processes


def codes(log: StartupLog) -> list[str]:
    return [one.code for one in log.notices if one.code.startswith("npu-")]


def test_idle_chips_have_the_drivers_memory_in_use() -> None:
    log = read_log(table(3397, 3395) + SERVE)
    assert [(chip.card, chip.used_mib, chip.total_mib) for chip in log.chips] == [
        ("0", 3397, 65536),
        ("1", 3395, 65536),
    ]
    assert log.taken_gib is None
    assert codes(log) == []


def test_memory_without_a_process_is_still_in_use() -> None:
    # 34,120 MB less what the driver has of 65,536: torch sees 60.97 GiB of such a chip.
    log = read_log(table(3397, 34120, processes=NONE.format(0) + NONE.format(1)))
    assert log.taken_gib == pytest.approx(34120 / 1024 - (64 - 60.97), abs=0.02)
    assert codes(log) == ["npu-memory-held"]
    held = next(one for one in log.notices if one.code == "npu-memory-held")
    assert (held.params["chips"], held.params["used"]) == ("1", "34120")
    assert "fuser" in words(Language.CHINESE).next_step(held)


def test_a_process_that_is_listed_takes_it() -> None:
    log = read_log(table(30412, 3395, processes=BUSY + NONE.format(1)))
    assert codes(log) == ["npu-memory-taken"]


def test_chips_of_one_card_are_told_apart() -> None:
    log = read_log(A3)
    assert [(chip.card, chip.chip, chip.used_mib) for chip in log.chips] == [
        ("7", "0", 3416),
        ("7", "1", 31877),
    ]


def test_cards_of_32_gb_keep_their_own_share() -> None:
    # 31,662,800,896 bytes are what torch sees of 32,768 MB.
    log = read_log(table(12_812, total=32768, name="910B4"))
    assert log.taken_gib == pytest.approx(12_812 / 1024 - (32 - 29.49), abs=0.02)


def test_it_is_planned_as_taken_before_the_start() -> None:
    current = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B2-64GB"})
    log = read_log(table(3397, 34120) + SERVE)
    found = scenario_from_log(log, current)
    assert found.scenario.surroundings.taken_gib == log.taken_gib
    assert "surroundings" not in found.borrowed


def test_memory_of_the_start_itself_does_not_count() -> None:
    assert read_log(SERVE + READY + table(60_000)).chips == ()
    assert len(read_log(table(3_500) + SERVE + READY + table(60_000)).chips) == 1
    assert read_log(table(3_500) + SERVE + READY + table(60_000)).taken_gib is None


def test_after_a_failed_start_it_does() -> None:
    log = read_log(SERVE + FREE + table(34_120))
    assert log.failure is not None
    assert log.failure.code == "start-memory-taken"
    assert log.taken_gib is not None


HCCL = "RuntimeError: create_config:build/torch_npu.dir/compiler_depend.ts:148 HCCL function error: "
PREFIX = "(VllmWorker rank=3 pid=50935) ERROR 09-10 03:36:31 [multiproc_executor.py:527] "


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (
            [
                HCCL + "hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &x), error code is 7",
                "[ERROR] 2025-04-24-16:14:56 (PID:468348, Device:0, RankID:2) ERR02200 DIST call hccl api failed.",
                "EJ0001: [PID: 468348] 2025-04-24-16:14:56.975.866 Failed to initialize the HCCP process. Reason: "
                "Maybe the last training process is running.",
            ],
            "start-hccp-running",
        ),
        (
            [
                "EL0004: [PID: 316198] 2025-09-28-07:22:29.827.496 Failed to allocate memory.",
                "        Possible Cause: Available memory is insufficient.",
                "        Failed to allocate resource[DeviceMemory] with info [size:2147483648]. Reason: Memory",
                "        Nnopbase fails to invoke the HcclAllocComResourceByTiling function of the hccl module.",
            ],
            "start-oom-hccl",
        ),
        (
            [
                PREFIX + "RuntimeError: OPS function error: HcclAllreduce, error code is 6",
                PREFIX
                + "EI0006: [PID: 1292363] Getting socket times out. Reason: Remote Rank did not send the data",
            ],
            "start-hccl-timeout",
        ),
        (
            [
                PREFIX
                + HCCL
                + "hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config), error code is 1"
            ],
            "start-collectives-npu",
        ),
    ],
)
def test_errors_of_cann_and_hccl(lines: list[str], code: str) -> None:
    failure = read_log("\n".join(["vllm-ascend", *lines])).failure
    assert failure is not None
    assert failure.code == code
    for language in Language:
        assert words(language).next_step(failure.notice)


def test_an_allocation_of_cann_has_size_and_phase() -> None:
    lines = [
        "INFO 09-10 [model_runner_v1.py:1912] Loading model weights took 27.5376 GB",
        "EL0004: [PID: 14004] 2025-11-06-01:17:59.527.855 Failed to allocate memory.",
        "        Possible Cause: Available memory is insufficient.",
        "        Failed to allocate resource[DeviceMemory] with info [size:2147483648].",
    ]
    failure = read_log("\n".join(lines)).failure
    assert failure is not None
    assert (failure.code, failure.phase, failure.number("tried_gib")) == (
        "start-oom-profiling",
        Phase.PROFILING,
        2.0,
    )


def test_a_flood_of_tables_is_read_in_bounded_time() -> None:
    line = "| 0 0 | 0000:C1:00.0 | " + "0 / " * 90 + "|\n"
    log = read_log(HEAD + line * 20_000 + SERVE)
    assert log.chips == ()


@pytest.mark.parametrize(
    "line",
    [
        "INFO 08-25 10:00:01 [__init__.py:44] plugin ascend loaded.\n",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)\n",
        '  File "/usr/local/lib/python3.11/site-packages/torch_npu/npu/utils.py", line 60, in set_device\n',
    ],
)
def test_one_line_of_the_plug_in_tells_it_from_vllm(line: str) -> None:
    server = "INFO 08-25 10:00:00 [api_server.py:1] vLLM API server version 0.23.0\n"
    assert read_log(server + line).engine == "vllm-ascend"
    assert (
        read_log(server + line.replace("ascend", "x").replace("NPU", "CUDA").replace("npu", "x")).engine
        == "vllm"
    )
