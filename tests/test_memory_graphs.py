"""CUDA graphs: printed sizes, counts, and what is taken off the budget."""

import pytest

from kvcore.memory.graphs import counted_graph_bytes, cuda_graph_bytes, graph_count
from kvcore.quantity import Grade
from kvcore.units import GIB, MIB
from tests.engine_examples import L40S, LLAMA_8B, QWEN3_14B, QWEN25_05B, RTX_3090, setting_for


@pytest.mark.parametrize(
    ("config", "fields", "printed_gib"),
    [
        (LLAMA_8B, {"engine_version": "0.15.1", "accelerator": L40S}, 0.55),
        (LLAMA_8B, {"engine_version": "0.12.0", "accelerator": RTX_3090, "max_num_seqs": 64,
                    "max_model_len": 31800}, 0.21),
        (QWEN3_14B, {"engine_version": "0.18.0"}, 0.9),
        (QWEN25_05B, {"engine_version": "0.26.0", "max_num_seqs": 256}, 0.4),
    ],
)  # fmt: skip
def test_printed_sizes_lie_inside_the_interval(
    config: dict[str, object], fields: dict[str, object], printed_gib: float
) -> None:
    """vLLM's own "Graph capturing finished … took"."""
    quantity = cuda_graph_bytes(setting_for(config, **fields))
    assert quantity.interval is not None
    assert quantity.interval[0] <= printed_gib * GIB <= quantity.interval[1]


def test_full_graphs_stop_at_the_widest_decode_batch() -> None:
    """A log of 0.26.0 with 256 sequences: PIECEWISE 51, FULL 35."""
    assert graph_count(setting_for(engine_version="0.26.0", max_num_seqs=256)) == 51 + 35
    assert graph_count(setting_for(engine_version="0.19.0")) == 51 + 51
    assert graph_count(setting_for(engine_version="0.9.2")) == 67


def test_eager_starts_have_no_graphs() -> None:
    setting = setting_for(engine_version="0.32.0", enforce_eager=True)
    graphs = cuda_graph_bytes(setting)
    assert (graphs.value, graphs.grade) == (0, Grade.EXACT)
    assert counted_graph_bytes(setting, graphs).value == 0


@pytest.mark.parametrize(
    ("version", "env", "is_counted"),
    [
        ("0.19.0", {}, False),
        ("0.19.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}, True),
        ("0.20.0", {}, True),
        ("0.20.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, False),
        ("0.26.0", {"VLLM_USE_V2_MODEL_RUNNER": "1"}, False),
        ("0.29.0", {}, True),
    ],
)
def test_the_estimate_is_taken_off_from_0_20_on(version: str, env: dict[str, str], is_counted: bool) -> None:
    setting = setting_for(engine_version=version, env=env)
    assert (counted_graph_bytes(setting, cuda_graph_bytes(setting)).value > 0) is is_counted


def test_the_flashinfer_workspace_is_part_of_the_estimate() -> None:
    """RTX 5090, 0.26.1rc1, one sequence and fp8 keys: 0.40 GiB estimated for two sizes."""
    setting = setting_for(
        LLAMA_8B, engine_version="0.26.0", accelerator="RTX-5090-32GB", kv_cache_dtype="fp8", max_num_seqs=1,
        max_model_len=8192, env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    )  # fmt: skip
    counted = counted_graph_bytes(setting, cuda_graph_bytes(setting)).value
    assert 394 * MIB <= counted <= 420 * MIB


def test_pipeline_stages_capture_their_own_layers() -> None:
    whole = cuda_graph_bytes(setting_for(engine_version="0.23.0", accelerator=L40S))
    half = cuda_graph_bytes(setting_for(engine_version="0.23.0", accelerator=L40S, pipeline_parallel_size=2))
    assert half.value == whole.value // 2
