"""SGLang as an engine: a budget of its own, in its own words, with its own arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvcore
from kvcore.advice.fraction import fraction_limits
from kvcore.advice.vary import Varied, variants
from kvcore.base.errors import EngineRefusalError, KvPlannerError, ModelError
from kvcore.base.words import Language, words
from kvcore.charts.engines import raise_or_lower, why_engines_differ
from kvcore.engines.registry import engine_names
from kvcore.evidence.log.reader import measured_from, read_log
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request
from tests.derivation_plans import WHISPER
from tests.special_models import fact_of

KVCORE = Path(kvcore.__file__).parent
QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


def planned(version: str = "0.5.18", card: object = "H100-80GB", **fields: Any) -> Plan:
    asked = {"model": "own/dense", "config": QWEN, "engine": "sglang", "engine_version": version}
    return plan(scenario_from_request(asked | {"accelerator": card} | fields))


def own(found: Plan) -> dict[str, Any]:
    """What the plan says of the start in the engine's own words."""
    return dict(found.resolved.engine.own_result(found.resolved, found.cache)[0])


def refusal(**fields: Any) -> KvPlannerError:
    with pytest.raises(KvPlannerError) as caught:
        planned(**fields)
    return caught.value


MEASURED = {"free_before_weights_gib": 78.0, "free_after_weights_gib": 62.5}


@pytest.mark.parametrize(
    ("version", "card", "ranks", "fraction"),
    [
        ("0.4.6.post5", "A100-80GB", 1, 0.88),
        ("0.5.18", "RTX-4090-24GB", 1, 0.833),
        ("0.5.18", "RTX-4090-24GB", 2, 0.828),
        ("0.5.23", "RTX-4090-24GB", 1, 0.704),
        ("0.5.9", "L40S-48GB", 1, 0.851),
        ("0.5.23", "L40S-48GB", 1, 0.843),
        ("0.5.18", "H100-80GB", 1, 0.83),
    ],
)
def test_the_fraction_follows_card_and_release(version: str, card: str, ranks: int, fraction: float) -> None:
    found = planned(version, card, tensor_parallel_size=ranks)
    assert own(found)["mem_fraction_static"] == pytest.approx(fraction, abs=0.002)


def test_the_pool_is_what_the_fraction_leaves_of_measured_memory() -> None:
    """78 GiB free, of which 62.5 stay: at 0.8 the pool gets 62.5 - 78 x 0.2 = 46.9 GiB of 147,456-byte tokens."""
    found = planned(gpu_memory_utilization=0.8, measured=MEASURED)
    assert found.cache is not None
    tokens = int(46.9 * (1 << 30)) // 147_456
    assert found.cache.tokens == tokens
    assert own(planned(gpu_memory_utilization=0.8, measured=MEASURED))["page_size"] == 1


def test_both_engines_part_on_the_same_card() -> None:
    vllm = plan(scenario_from_request({"model": "own/dense", "config": QWEN, "accelerator": "H100-80GB"}))
    sglang = planned("0.5.23")
    assert vllm.cache is not None
    assert sglang.cache is not None
    assert vllm.cache.tokens > sglang.cache.tokens > 0.8 * vllm.cache.tokens


def test_compare_holds_both_engines_against_each_other() -> None:
    base = scenario_from_request({"model": "own/dense", "config": QWEN, "accelerator": "H100-80GB"})
    found = {one.value: one for one in variants(base, Varied.ENGINE)}
    assert found["vllm"].is_now
    assert found["sglang"].starts
    assert "vllm-ascend" not in found


def test_the_context_may_be_longer_than_the_pool() -> None:
    found = planned(card="RTX-4090-24GB", version="0.5.23")
    assert found.cache is not None
    assert found.cache.tokens < 40960
    assert found.verdict.value == "tight"


def test_a_share_below_the_weights_is_refused_in_its_words() -> None:
    error = refusal(gpu_memory_utilization=0.15, measured=MEASURED)
    assert isinstance(error, EngineRefusalError)
    assert "Not enough memory" in str(error) or "leave no GPU memory" in str(error)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"mem_fraction_static": -0.1}, "invalid-value"),
        ({"mem_fraction_static": 1.5}, "invalid-value"),
        ({"mem_fraction_static": float("nan")}, "invalid-value"),
        ({"mem_fraction_static": "0.8"}, "invalid-value"),
        ({"tp_size": 2.5}, "invalid-value"),
        ({"context_length": True}, "invalid-value"),
        ({"attention_backend": "x" * 401}, "invalid-value"),
        ({"tp_size": 4, "dp_size": 3, "enable_dp_attention": True}, "invalid-value"),
        ({"kv_cache_dtype": "int3"}, "unknown-kv-cache-dtype"),
        ({"attention_backend": "trtllm_mla"}, "engine-refused"),
    ],
)
def test_its_arguments_are_judged(args: dict[str, Any], code: str) -> None:
    assert refusal(server_args=args).code == code


def test_what_is_said_twice_must_agree() -> None:
    fields = {"gpu_memory_utilization": 0.9, "server_args": {"mem_fraction_static": 0.8}}
    assert refusal(**fields).code == "said-twice"
    agreed = planned(gpu_memory_utilization=0.8, server_args={"mem-fraction-static": 0.8})
    assert own(agreed)["mem_fraction_static"] == 0.8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_gpu_blocks_override", 512),
        ("kv_cache_memory_bytes", 1 << 30),
        ("cudagraph_capture_sizes", [1, 2]),
        ("decode_context_parallel_size", 2),
        ("additional_config", {"enable_flashcomm1": True}),
    ],
)
def test_flags_of_other_engines_are_refused(field: str, value: object) -> None:
    assert refusal(**{field: value}).code == "flag-of-another-engine"


@pytest.mark.parametrize("engine", [name for name in engine_names() if name != "sglang"])
def test_no_other_engine_takes_its_arguments(engine: str) -> None:
    card = {"vllm": "H100-80GB"}.get(engine, "Ascend-910B-64GB")
    assert refusal(engine=engine, version="", card=card, server_args={"tp_size": 2}).code in {
        "field-of-another-engine", "invalid-value", "unknown-accelerator",
    }  # fmt: skip


def test_a_release_between_read_ones_says_which_one_stands_for_it() -> None:
    between = planned("0.5.12")
    assert between.resolved.notices
    assert own(between)["mem_fraction_static"] == own(planned("0.5.11"))["mem_fraction_static"]
    assert refusal(version="0.3.6").code == "engine-version-too-old"


def test_a_class_that_a_release_lacks_is_refused() -> None:
    newer = QWEN | {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    assert refusal(version="0.4.6.post5", config=newer).code != "internal-error"


def test_llama_vision_counts_every_layer_and_cuts_no_prompt() -> None:
    """40 layers of 8 heads with 128 + 128 elements of 2 bytes: those that look at images have the pool's row too."""
    config = fact_of("meta-llama/Llama-3.2-11B-Vision-Instruct")["config"]
    found = planned("0.5.23", "A100-80GB", config=config, measured=MEASURED, gpu_memory_utilization=0.8)
    shown, figures = found.resolved.engine.own_result(found.resolved, found.cache)
    assert figures["bytes_per_token"] == 163_840
    assert shown["chunked_prefill_size"] == -1
    assert own(planned("0.5.13", "A100-80GB", config=config))["chunked_prefill_size"] == 8192
    request = {"model": "own/vision", "config": config, "accelerator": "A100-80GB"}
    with pytest.raises(EngineRefusalError) as gone:
        plan(scenario_from_request(request | {"engine_version": "0.25.0"}))
    assert gone.value.code == "architecture-gone-from-release"


def test_a_model_without_keys_that_it_reads_is_refused_with_a_code() -> None:
    asked = {"config": WHISPER, "accelerator": "L40S-48GB", "max_model_len": 448, "engine": "sglang"}
    with pytest.raises(ModelError) as found:
        plan(scenario_from_request(asked))
    assert found.value.code == "unknown-architecture"


def test_no_other_room_names_it() -> None:
    """An engine is its folder, a row of the registry, the values of flags, and how files and traffic are known."""
    named = {
        path.relative_to(KVCORE).as_posix()
        for path in KVCORE.rglob("*")
        if path.suffix in {".py", ".toml"}
        and "sglang" in path.read_text("utf-8").lower()
        and not path.relative_to(KVCORE)
        .as_posix()
        .startswith(("engines/sglang/", "manifests/", "catalogue/models/"))
    }
    assert named <= ALLOWED, named - ALLOWED


ALLOWED = {
    "engines/registry.py", "flags/registry.toml", "flags/typed.py", "workload/streams.py", "workload/requests.toml",
    "replay/bench.py", "evidence/log/failures.toml", "evidence/log/line_formats.toml",
}  # fmt: skip


def test_results_are_plain_json() -> None:
    found = planned("0.5.23")
    json.dumps(found.resolved.engine.own_result(found.resolved, found.cache))


LOG = """
[2026-08-22 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tokenizer_path='Qwen/Qwen3-8B', dtype='auto', kv_cache_dtype='auto', context_length=None, mem_fraction_static=0.83, max_running_requests=None, max_total_tokens=None, chunked_prefill_size=8192, tp_size=1, attention_backend='fa3')
[2026-08-22 10:00:20] Load weight begin. avail mem=78.48 GB
[2026-08-22 10:00:29] Load weight end. elapsed=8.86 s, type=Qwen3ForCausalLM, avail mem=63.21 GB, mem usage=15.27 GB.
[2026-08-22 10:00:29] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 363116, K size: 24.93 GB, V size: 24.93 GB
[2026-08-22 10:00:29] Memory pool end. avail mem=12.60 GB
[2026-08-22 10:00:40] Capture target decode CUDA graph end. elapsed=9.1 s, mem usage=0.61 GB, avail mem=11.80 GB.
[2026-08-22 10:00:41] max_total_num_tokens=363116, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2269, context_len=40960, available_gpu_mem=11.80 GB
"""  # noqa: E501


def test_a_log_of_a_start_is_read() -> None:
    log = read_log(LOG)
    measured = measured_from(log)
    assert (log.engine, log.model, log.missing) == ("sglang", "Qwen/Qwen3-8B", ())
    assert (log.flags.gpu_memory_utilization, log.flags.max_num_batched_tokens) == (0.83, 8192)
    assert (measured.weights_gib, measured.free_before_weights_gib, measured.cuda_graph_gib) == (
        15.27,
        78.48,
        0.61,
    )
    figures = {reading.figure: reading.value for reading in log.readings}
    assert (figures["kv_tokens"], figures["model_len"]) == (363116, 40960)


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise it.",
    ],
)
def test_a_failure_is_read_in_its_words(words: str) -> None:
    log = read_log("\n".join([*LOG.splitlines()[:4], words]))
    assert log.failure is not None
    assert log.failure.code == "start-no-kv-memory"


def test_compare_says_why_they_differ() -> None:
    base = scenario_from_request({"model": "own/dense", "config": QWEN, "accelerator": "H100-80GB"})
    named = [(one.value, one) for one in variants(base, Varied.ENGINE)]
    said = list(why_engines_differ(named, words(Language.ENGLISH)))
    assert "of the whole card" in said[0]
    assert "of what is free before the weights" in said[1]
    assert "0.83 " in said[1]
    assert "GiB GiB" not in "".join(said)
    assert "vllm holds" in said[2]
    assert list(why_engines_differ(named[:1], words(Language.ENGLISH))) == []


@pytest.mark.parametrize("version", ["0.5.9", "0.5.18", "0.5.23"])
@pytest.mark.parametrize("card", ["H100-80GB", "RTX-4090-24GB", "A100-80GB"])
@pytest.mark.parametrize("length", [2048, 8192, 32768])
def test_the_limits_of_the_fraction_are_those_of_plans(version: str, card: str, length: int) -> None:
    found = fraction_limits(planned(version, card, max_model_len=length))
    assert found is not None
    assert found.least is not None
    assert found.most is not None

    def at(share: float) -> Plan:
        return planned(version, card, max_model_len=length, gpu_memory_utilization=round(share, 3))

    lowest, highest = at(found.least), at(found.most)
    assert lowest.cache is not None
    assert lowest.cache.tokens >= length
    below = at(found.least - 0.002).cache
    assert below is None or below.tokens < length
    assert highest.memory is not None
    assert highest.memory.least_room >= 0
    beyond = at(found.most + 0.002)
    assert beyond.memory is not None
    assert beyond.memory.least_room < 0
    assert beyond.verdict is not Verdict.FITS


def test_the_plan_says_which_way_the_fraction_may_go() -> None:
    t = words(Language.ENGLISH)
    usual = planned("0.5.23", max_model_len=8192)
    assert "lower it to" in raise_or_lower(usual, t)
    high = planned("0.5.23", max_model_len=8192, gpu_memory_utilization=0.98)
    assert raise_or_lower(high, t).startswith("Lower mem_fraction_static from 0.980")
    low = planned("0.5.23", max_model_len=8192, gpu_memory_utilization=0.205)
    assert raise_or_lower(low, t).startswith("Raise mem_fraction_static from 0.205")
    wide = raise_or_lower(planned("0.5.23", "RTX-4090-24GB", max_model_len=40960), t)
    assert wide.startswith("No mem_fraction_static does both")
    vllm = plan(scenario_from_request({"model": "own/dense", "config": QWEN, "accelerator": "H100-80GB"}))
    assert raise_or_lower(vllm, t) == ""
