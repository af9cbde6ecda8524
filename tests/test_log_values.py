"""The flags about CUDA graphs in a log, as each era prints them."""

import pytest

from kvcore.evidence.log.arguments import LoggedGraphs
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import scenario_from_log, with_logged_graphs
from kvcore.manifests.values import graph_flags
from kvcore.planning import plan

OWN = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""Sizes of a start without flags, 0.11.1 to 0.33.0."""


def log_of(arguments: str = "", config: str = "", version: str = "0.20.2") -> str:
    return (
        f"INFO non-default args: {{'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192{arguments}}}\n"
        f"INFO [core.py:105] Initializing a V1 LLM engine (v{version}) with config: model='Qwen/Qwen3-8B', "
        f"enforce_eager=False, compilation_config={config or '{}'}\n"
        "INFO [gpu_worker.py:1] Available KV cache memory: 52.80 GiB\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "flags"),
    [
        ("max_cudagraph_capture_size", "4", {"max_cudagraph_capture_size": 4}),
        ("max_cudagraph_capture_size", "0", {}),
        ("max_cudagraph_capture_size", "None", {}),
        ("cudagraph_capture_sizes", "[4,1,1]", {"cudagraph_capture_sizes": (1, 4)}),
        ("cudagraph_capture_sizes", "1,2,4", {"cudagraph_capture_sizes": (1, 2, 4)}),
        ("cudagraph_capture_sizes", "[]", {}),
        # Whoever shortens a list says nothing about the others in it.
        ("cudagraph_capture_sizes", "[1,2,...,512]", {}),
        ("cuda_graph_sizes", "[64]", {"max_cudagraph_capture_size": 64}),
        ("cuda_graph_sizes", "64", {"max_cudagraph_capture_size": 64}),
        ("cuda_graph_sizes", "8,16", {"cudagraph_capture_sizes": (8, 16)}),
        ("cudagraph_mode", "<CUDAGraphMode.FULL_AND_PIECEWISE:(2,1)>", {"cudagraph_mode": "FULL_AND_PIECEWISE"}),
        ("cudagraph_mode", "CUDAGraphMode.FULL", {"cudagraph_mode": "FULL"}),
        ("cudagraph_mode", "full_decode_only", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
        ("cudagraph_mode", "[2,0]", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
        ("cudagraph_mode", "1", {"cudagraph_mode": "PIECEWISE"}),
        ("cudagraph_mode", "None", {}),
        ("cudagraph_mode", "<script>", {}),
        ("O_cudagraph_mode", "FULL", {"cudagraph_mode": "FULL"}),
        ("cc_max_cudagraph_capture_size", "8", {"max_cudagraph_capture_size": 8}),
        ("compilation_config_cudagraph_capture_sizes", "[1,2]", {"cudagraph_capture_sizes": (1, 2)}),
        ("compilation_config", '{"level":3,"cudagraph_capture_sizes":[2,1],"max_capture_size":2}',
         {"cudagraph_capture_sizes": (1, 2)}),
        ("compilation_config", "{'mode':None,'cudagraph_mode':<CUDAGraphMode.NONE:0>,'pass_config':{'x':[1,2]}}",
         {"cudagraph_mode": "NONE"}),
        ("cc", '{"max_cudagraph_capture_size":16}', {"max_cudagraph_capture_size": 16}),
        ("O", "3", {}),
        ("compilation_config", "3", {}),
        ("max_num_seqs", "4", {}),
    ],
)  # fmt: skip
def test_a_field_about_graphs_is_read(name: str, value: str, flags: dict[str, object]) -> None:
    assert graph_flags(name, value) == flags


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--max-cudagraph-capture-size 4", {"max_cudagraph_capture_size": 4}),
        ("--cudagraph-capture-sizes 1 2 4 --max-num-seqs 8", {"cudagraph_capture_sizes": [1, 2, 4]}),
        ("--cuda-graph-sizes 128", {"max_cudagraph_capture_size": 128}),
        ("""--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}'""", {"cudagraph_mode": "FULL_DECODE_ONLY"}),
        ("""--max-num-seqs 8 -O '{"cudagraph_capture_sizes": [1, 2]}'""", {"cudagraph_capture_sizes": [1, 2]}),
        ("--max-num-seqs 8 -cc.cudagraph_mode=none -O3", {"cudagraph_mode": "NONE"}),
    ],
)  # fmt: skip
def test_a_pasted_command(words: str, flags: dict[str, object]) -> None:
    scenario = scenario_from_log(read_log(f"$ vllm serve Qwen/Qwen3-8B {words}\n")).scenario
    for name, value in flags.items():
        given = getattr(scenario, name)
        assert (list(given) if isinstance(given, tuple) else given) == value


def test_resolved_graphs_are_no_flags_where_the_plan_has_the_same() -> None:
    log = read_log(log_of(config=f'{{"cudagraph_capture_sizes": {OWN}}}'))
    assert log.graphs == LoggedGraphs(sizes=tuple(OWN))
    assert log.flags.cudagraph_capture_sizes is None
    assert scenario_from_log(log).scenario.cudagraph_capture_sizes is None


def test_other_sizes_and_modes_are_taken_over() -> None:
    config = "{'cudagraph_mode': <CUDAGraphMode.PIECEWISE: 1>, 'cudagraph_capture_sizes': [1, 2, 4, 6, 8]}"
    scenario = scenario_from_log(read_log(log_of(config=config))).scenario
    resolved = plan(scenario).resolved
    assert (resolved.cudagraph_capture_sizes, resolved.cudagraph_mode) == ((1, 2, 4, 6, 8), "PIECEWISE")


def test_a_maximum_that_the_person_asked_for_stays() -> None:
    asked = ", 'max_cudagraph_capture_size': 20"
    log = read_log(log_of(asked, "{'cudagraph_capture_sizes': [1, 2, 4, 8, 16]}"))
    scenario = scenario_from_log(log).scenario
    assert (scenario.max_cudagraph_capture_size, scenario.cudagraph_capture_sizes) == (20, None)
    # Sizes that the maximum does not explain stand above it.
    scenario = scenario_from_log(read_log(log_of(asked, "{'cudagraph_capture_sizes': [1, 3]}"))).scenario
    assert (scenario.max_cudagraph_capture_size, scenario.cudagraph_capture_sizes) == (None, (1, 3))


def test_a_list_that_cannot_be_planned_is_left_out() -> None:
    log = read_log(log_of(config='{"cudagraph_capture_sizes": [1, 2], "cudagraph_mode": 1}', version="0.9.2"))
    scenario = scenario_from_log(log).scenario
    assert (scenario.cudagraph_mode, scenario.cudagraph_capture_sizes) == (None, (1, 2))


def test_an_eager_start_is_left_alone() -> None:
    log = read_log(log_of(", 'enforce_eager': True", '{"cudagraph_capture_sizes": [1, 2]}'))
    scenario = scenario_from_log(log).scenario
    assert scenario.cudagraph_capture_sizes is None
    assert with_logged_graphs(scenario, log) is scenario
