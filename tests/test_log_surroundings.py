"""Surroundings of a start in its log: lines of engine, NCCL and the tools of the cards."""

from __future__ import annotations

import pytest

from kvcore.base.words import Language, words
from kvcore.catalogue import find_accelerator
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import (
    contradictions,
    request_from,
    scenario_from_log,
    with_logged_surroundings,
)
from kvcore.scenario import Scenario
from kvcore.wire.request import scenario_from_request

NO_P2P = (
    "(Worker_TP1 pid=7) WARNING 03-22 18:40:47 [custom_all_reduce.py:147] Custom allreduce is disabled because your "
    "platform lacks GPU P2P capability or P2P test failed. To silence this warning, specify "
    "disable_custom_all_reduce=True explicitly."
)
PCIE_ONLY = (
    "(VllmWorkerProcess pid=281) WARNING 03-22 18:40:47 [custom_all_reduce.py:137] Custom allreduce is disabled "
    "because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify "
    "disable_custom_all_reduce=True explicitly."
)
NODES = "INFO [custom_all_reduce.py:85] Custom allreduce is disabled because this process group spans across nodes."
BY_SHM = "host:211:318 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct"
BY_P2P = "host:211:318 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM"
BY_NET = "host:211:318 [1] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0"
GRAPHS = "(Worker_TP0 pid=6) INFO 05-01 [custom_all_reduce.py:203] Registering 13685 cuda graph addresses"
SAMPLER = "INFO 06-04 [topk_topp_sampler.py:59] Using FlashInfer for top-p & top-k sampling."
NO_SAMPLER = (
    "WARNING 06-04 [topk_topp_sampler.py:69] FlashInfer is not available. Falling back to the PyTorch-native "
    "implementation of top-p & top-k sampling. For the best performance, please install FlashInfer."
)
WSL = "WARNING 07-09 [interface.py:382] Using 'pin_memory=False' as WSL is detected. This may slow down performance."
SMI = "| NVIDIA-SMI 580.159.03             Driver Version: 580.159.03     CUDA Version: 13.0     |"
NPU_SMI = "$ npu-smi info\n| npu-smi 25.2.0                   Version: 25.2.0                              |"
AMD_SMI = "| AMD-SMI 26.2.0+021c61fc    amdgpu version: 6.16.6   ROCm version: 7.2.0    |"
LINK, HOST, DRIVER = "surroundings.link", "surroundings.host", "surroundings.driver"
INSTALLATION, FLASHINFER = "surroundings.installation", "env.VLLM_USE_FLASHINFER_SAMPLER"


def start(*lines: str, ranks: int = 2) -> str:
    arguments = f"non-default args: {{'model': 'Qwen/Qwen3-8B', 'tensor_parallel_size': {ranks}}}"
    return "\n".join(("INFO vLLM API server version 0.19.0", arguments, *lines))


@pytest.mark.parametrize(
    ("lines", "ranks", "field", "cases"),
    [
        ((NO_P2P,), 2, LINK, ("pcie",)),
        ((PCIE_ONLY,), 4, LINK, ("pcie", "pcie-p2p")),
        ((PCIE_ONLY, BY_P2P), 4, LINK, ("pcie-p2p",)),
        ((BY_SHM, PCIE_ONLY), 4, LINK, ("pcie",)),
        ((BY_P2P,), 2, LINK, ("nvlink", "pcie-p2p")),
        ((GRAPHS,), 2, LINK, ("nvlink", "pcie-p2p")),
        ((GRAPHS,), 4, LINK, ("nvlink",)),
        ((NODES, BY_P2P, BY_NET), 16, LINK, ("hosts",)),
        ((BY_NET, BY_P2P), 8, LINK, ("nvlink", "pcie-p2p")),
        ((BY_NET,), 16, LINK, ("hosts",)),
        ((SAMPLER,), 1, FLASHINFER, ("1",)),
        ((NO_SAMPLER,), 1, FLASHINFER, ("0",)),
        ((NO_SAMPLER,), 1, INSTALLATION, ("pip", "vendor")),
        ((NO_SAMPLER, "$ uv pip install vllm==0.10.2", "pip install vllm"), 1, INSTALLATION, ("pip",)),
        (("docker run --gpus all vllm/vllm-openai:v0.19.0 --model m",), 1, INSTALLATION, ("image",)),
        (("NVIDIA Release 25.11 (build 231191015)",), 1, INSTALLATION, ("ngc",)),
        (("docker pull rocm/vllm:rocm7.2_mi350",), 1, INSTALLATION, ("vendor",)),
        ((WSL,), 1, HOST, ("wsl",)),
        ((SMI,), 1, DRIVER, ("580.159.03",)),
        ((NPU_SMI,), 1, DRIVER, ("25.2.0",)),
        ((AMD_SMI,), 1, DRIVER, ("ROCm 7.2.0",)),
    ],
)
def test_lines_leave_these_cases(
    lines: tuple[str, ...], ranks: int, field: str, cases: tuple[str, ...]
) -> None:
    found = {said.field: said for said in read_log(start(*lines, ranks=ranks)).surroundings}
    assert found[field].cases == cases
    assert found[field].line in lines[0] + "\n".join(lines)


def test_a_log_without_facts_about_its_machine_leaves_it_unknown() -> None:
    log = read_log(start("INFO Available KV cache memory: 52.80 GiB"))
    assert log.surroundings == ()
    assert "surroundings" not in request_from(log)


def test_surroundings_with_one_case_left_are_in_the_request() -> None:
    request = request_from(read_log(start(NO_P2P, WSL, SMI, SAMPLER, PCIE_ONLY)))
    assert request["surroundings"] == {"link": "pcie", "host": "wsl", "driver": "580.159.03"}
    assert request["env"] == {"VLLM_USE_FLASHINFER_SAMPLER": "1"}


@pytest.mark.parametrize(("card", "link"), [("RTX-3090-24GB", "pcie-p2p"), ("H100-80GB", "nvlink")])
def test_of_two_links_it_is_the_one_that_such_cards_have(card: str, link: str) -> None:
    (said,) = read_log(start(BY_P2P)).surroundings
    assert said.settled(find_accelerator(card)) == link
    assert said.settled(None) is None


def sidebar(**fields: object) -> Scenario:
    return scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "RTX-3090-24GB", **fields})


CHOSEN = {"link": "nvlink", "host": "linux", "driver": "570.86.15", "installation": "ngc", "taken_gib": 3.0}


def test_a_log_that_contradicts_a_choice_is_reported_and_counts() -> None:
    free = "INFO Free memory on device (22.93/23.56 GiB) on startup. Desired GPU memory utilization is (0.9, 21.2 GiB)."
    log = read_log(start(NO_P2P, WSL, SMI, NO_SAMPLER, free))
    chosen = sidebar(surroundings=CHOSEN, env={"VLLM_USE_FLASHINFER_SAMPLER": 1})
    found = contradictions(chosen, log)
    assert {one.code for one in found} == {"log-contradicts-surrounding"}
    said = {one.field: (one.params["chosen"], one.params["logged"], one.params["line"]) for one in found}
    assert said == {
        LINK: ("nvlink", "pcie", "3"), HOST: ("linux", "wsl", "4"), DRIVER: ("570.86.15", "580.159.03", "5"),
        INSTALLATION: ("ngc", "pip, vendor", "6"), FLASHINFER: ("1", "0", "6"),
        "surroundings.taken_gib": ("3", "≤ 0.63", "7"),
    }  # fmt: skip
    corrected = with_logged_surroundings(chosen, log)
    around = corrected.surroundings
    assert (around.link, around.host, around.driver) == ("pcie", "wsl", "580.159.03")
    assert (around.installation, around.taken_gib) == (None, None)
    assert corrected.env == {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    assert contradictions(corrected, log) == ()


def test_a_case_that_the_log_allows_is_no_contradiction() -> None:
    log = read_log(start(BY_P2P, SMI))
    chosen = sidebar(surroundings={"link": "pcie-p2p", "driver": "580"})
    assert contradictions(chosen, log) == ()
    assert with_logged_surroundings(chosen, log) == chosen


def test_the_notice_has_words_in_both_languages() -> None:
    (found,) = contradictions(sidebar(surroundings={"host": "linux"}), read_log(start(WSL)))
    for language in Language:
        t = words(language)
        said = t.error(found)
        assert all(part in said for part in ("wsl", "linux", HOST))
        assert t.next_step(found)
    assert words(Language.CHINESE).error(found) != words(Language.ENGLISH).error(found)


def test_missing_parts_of_a_log_are_borrowed_from_the_sidebar() -> None:
    current = sidebar(surroundings={"installation": "pip", "link": "nvlink"})
    found = scenario_from_log(read_log(start(NO_P2P)), current)
    assert (found.scenario.surroundings.installation, found.scenario.surroundings.link) == ("pip", "pcie")
    assert "surroundings" in found.borrowed
    assert "surroundings" not in scenario_from_log(read_log(start(NO_P2P)), sidebar()).borrowed


def test_hostile_lines_are_bounded() -> None:
    flood = "npu-smi Driver Version: ] via P2P/ " * 20_000
    assert {said.field for said in read_log(start(flood)).surroundings} == {LINK}
