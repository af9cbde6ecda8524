"""The JSON of a start-up log, and that its request can be planned."""

import json
from pathlib import Path

import pytest

from kvcore.base.errors import ScenarioError
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.log_report import log_report, log_result, log_table
from kvcore.wire.request import parse_request, scenario_from_request

DATA = Path(__file__).parent / "data" / "logs"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}


def test_result_of_a_start() -> None:
    result = log_result(read_log((DATA / "v1_0.9.2_a100.log").read_text("utf-8")))
    assert result["measured"] == {"weights_gib": 15.2683, "cuda_graph_gib": 2.24, "available_kv_gib": 18.69}
    assert (result["engine"], result["engine_version"], result["v0"], result["failure"]) == (
        "vllm",
        "0.9.2",
        False,
        None,
    )
    kv = next(figure for figure in result["figures"] if figure["figure"] == "available_kv_gib")
    assert (kv["value"], kv["unit"], kv["line_number"]) == (18.69, "GiB", 8)
    assert "Available KV cache memory: 18.69 GiB" in kv["line"]


def test_result_of_a_failed_start() -> None:
    text = (
        "ValueError: To serve at least one request with the models's max seq len (4096), (1.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (0.58 GiB). Based on the available memory, the estimated "
        "maximum model length is 2368. Try"
    )
    failure = log_result(read_log(text))["failure"]
    assert failure["change"] == {"field": "max_model_len", "value": 2368}
    assert (failure["code"], failure["phase"], failure["line_number"]) == (
        "start-context-too-long",
        "kv-cache",
        1,
    )


OLDER_THAN_KNOWN = ("v0_0.6.4_h200",)
"""Samples of releases before the first that is planned: their figures are read, and the request is refused by name."""


def _request_text(path: Path) -> str:
    result = log_result(read_log(path.read_text("utf-8")))
    return json.dumps({**result["request"], "config": CONFIG, "measured": result["measured"]})


@pytest.mark.parametrize("name", OLDER_THAN_KNOWN)
def test_a_release_before_the_first_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(ScenarioError, match="is older than") as caught:
        scenario_from_request(parse_request(_request_text(DATA / f"{name}.log")))
    assert (caught.value.code, caught.value.field) == ("engine-version-too-old", "engine_version")


@pytest.mark.parametrize(
    "path",
    sorted(path for path in DATA.glob("*.log") if path.stem not in OLDER_THAN_KNOWN),
    ids=lambda path: path.stem,
)
def test_request_of_every_sample_can_be_planned(path: Path) -> None:
    result = log_result(read_log(path.read_text("utf-8")))
    scenario = scenario_from_request(parse_request(_request_text(path)))
    assert scenario.engine == result["engine"]
    assert scenario.max_model_len == result["request"]["max_model_len"]
    assert scenario.measured.available_kv_gib == result["measured"].get("available_kv_gib")


def test_the_log_of_a_pre_run_says_its_peak_and_where_it_is_used() -> None:
    """29,614 MB are 28.9 GB."""
    text = (DATA / "mindspore_prerun.log").read_text("utf-8")
    lines = log_table(log_report(read_log(text)))
    assert "the peak of a pre-run, 28.9 GB" in lines
    assert "MindSpore pre-run on the Check page" in lines
