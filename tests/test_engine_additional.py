"""`--additional-config`: taken from everywhere a start is described, read by release, and what a plan makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.base.units import GIB, MIB
from kvcore.deploy.shell import launch_command
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import request_from
from kvcore.planning import Plan, plan
from kvcore.scenario import Scenario
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request

NEXT = {
    "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend",
    "engine_version": "0.23.0", "tensor_parallel_size": 4, "enable_expert_parallel": True,
}  # fmt: skip
SMALL = {"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend"}


def scenario(base: dict[str, Any], additional: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    return scenario_from_request({**base, "additional_config": additional, **changes})


def planned(base: dict[str, Any], additional: dict[str, Any] | None = None, **changes: Any) -> Plan:
    return plan(scenario(base, additional, **changes))


def parts(found: Plan) -> tuple[float, ...]:
    assert found.memory is not None
    memory = found.memory
    return memory.weights.value, memory.activations.value, memory.framework.value, memory.kv_cache.value


def interval(found: Plan) -> tuple[float, float]:
    assert found.memory is not None
    assert found.memory.kv_cache.interval is not None
    return found.memory.kv_cache.interval


def codes(found: Plan) -> list[str]:
    return [notice.code for notice in found.notices if notice.code.startswith("additional")]


@pytest.mark.parametrize(
    ("additional", "code", "field"),
    [
        ({"enable flashcomm1": True}, "unknown-field", "additional_config.enable flashcomm1"),
        ({"eplb_config": {"redundant": 4}}, "unknown-field", "additional_config.eplb_config.redundant"),
        ({"enable_flashcomm1": "yes"}, "invalid-value", "additional_config.enable_flashcomm1"),
        ({"finegrained_tp_config": 8}, "invalid-value", "additional_config.finegrained_tp_config"),
        ({"dump_config": {"path": "x" * 2000}}, "invalid-value", "additional_config"),
        ({"dump_config": {"rate": float("nan")}}, "invalid-value", "additional_config"),
        ("enable_flashcomm1", "invalid-value", "additional_config"),
    ],
)
def test_what_no_release_reads_is_refused_by_name(additional: Any, code: str, field: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario_from_request({**SMALL, "additional_config": additional})
    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.parametrize(
    ("version", "answer"),
    [("0.11.0", "additional-config-not-read"), ("0.23.0", "additional-config-not-read"), ("0.27.1rc1", None)],
)
def test_a_key_that_no_release_knows_stops_those_that_forbid_it(version: str, answer: str | None) -> None:
    """vllm-ascend's own nightly configs put `enable_static_kernel` beside `ascend_compilation_config`: releases before
    0.27 pass it over."""
    asked = {"enable_static_kernel": True, "refresh": True}
    if answer is None:
        with pytest.raises(EngineRefusalError) as refused:
            planned(SMALL, asked, engine_version=version)
        assert (refused.value.code, refused.value.params["value"]) == (
            "npu-refuses-unknown-key",
            "enable_static_kernel",
        )
        return
    found = planned(SMALL, asked, engine_version=version)
    assert codes(found) == [answer]
    assert parts(found) == parts(planned(SMALL, {"refresh": True}, engine_version=version))


def test_switches_are_read_as_python_and_pydantic_read_them() -> None:
    said = {"enable_flashcomm1": "True", "enable_fused_mc2": True, "enable_shared_expert_dp": 0}
    text = scenario(SMALL, said).additional_config
    assert text is not None
    assert json.loads(text) == {
        "enable_flashcomm1": True,
        "enable_fused_mc2": 1,
        "enable_shared_expert_dp": False,
    }


def test_it_travels_in_links_and_launch_commands_and_back() -> None:
    asked = {
        "refresh": True,
        "weight_prefetch_config": {"enabled": True, "prefetch_ratio": {"moe": {"gate_up": 0.8}}},
    }
    start = scenario(SMALL, asked)
    assert link.decode(link.encode(start)).scenario == start
    command = launch_command(plan(start))
    assert """--additional-config '{"refresh":true,""" in command
    again = request_from(read_log(command))
    assert again["additional_config"] == asked


@pytest.mark.parametrize("empty", [{}, None, {"eplb_config": None}])
def test_an_empty_one_says_nothing(empty: dict[str, Any] | None) -> None:
    assert scenario(SMALL, empty) == scenario(SMALL)


LOGS = {
    "arguments": "INFO non-default args: {'model': 'Qwen/Qwen3-8B', 'additional_config': {'enable_shared_expert_dp': "
    "True, 'layer_sharding': ['o_proj', 'q_b_proj']}}",
    "config": "INFO Initializing a V1 LLM engine (v0.18.0) with config: model='Qwen/Qwen3-8B', additional_config="
    "{'enable_shared_expert_dp': True, 'layer_sharding': ['o_proj', 'q_b_proj']}, max_seq_len=4096",
    "compose": "services:\n  a:\n    image: quay.io/ascend/vllm-ascend:v0.18.0\n    command: vllm serve Qwen/Qwen3-8B "
    """--additional-config '{"enable_shared_expert_dp": true, "layer_sharding": ["o_proj", "q_b_proj"]}'""",
    "kubernetes": "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: quay.io/ascend/vllm-ascend:v0.18.0\n"
    """    command: [vllm, serve, Qwen/Qwen3-8B]\n    args:\n    - --additional-config\n"""
    """    - '{"enable_shared_expert_dp": true, "layer_sharding": ["o_proj", "q_b_proj"]}'""",
}


@pytest.mark.parametrize("kind", LOGS)
def test_logs_and_container_files_say_it(kind: str) -> None:
    found = request_from(read_log(LOGS[kind]))
    expected = {"enable_shared_expert_dp": True, "layer_sharding": ["o_proj", "q_b_proj"]}
    assert found["additional_config"] == expected


def test_a_command_may_give_its_keys_one_by_one_and_those_without_a_row() -> None:
    dotted = "vllm serve Qwen/Qwen3-8B --additional-config.eplb_config.num_redundant_experts 4"
    assert request_from(read_log(dotted))["additional_config"] == {
        "eplb_config": {"num_redundant_experts": 4}
    }
    log = read_log(
        """vllm serve Qwen/Qwen3-8B --additional-config '{"refresh": true, "no_such": {"a": 1}}'"""
    )
    assert request_from(log)["additional_config"] == {"refresh": True, "no_such": {"a": 1}}


def test_a_value_nested_without_end_is_read_in_bounded_depth() -> None:
    log = read_log(
        f"vllm serve Qwen/Qwen3-8B --additional-config '{{\"dump_config\": {'[' * 1000}{']' * 1000}}}' -tp 2"
    )
    assert request_from(log)["tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("engine", "version", "accelerator"),
    [("vllm-ascend", "0.18.0", "Ascend-910B3-64GB"), ("vllm", "0.23.0", "H100-80GB")],
)
def test_a_release_that_does_not_read_a_key_plans_as_without(
    engine: str, version: str, accelerator: str
) -> None:
    base = NEXT | {"engine": engine, "engine_version": version, "accelerator": accelerator}
    found, without = planned(base, {"enable_flashcomm1": True}), planned(base)
    assert codes(found) == ["additional-config-not-read"]
    assert parts(found) == parts(without)


def test_flashcomm_by_its_key_is_flashcomm_by_its_variable() -> None:
    by_key = planned(NEXT, {"enable_flashcomm1": True})
    by_variable = planned(NEXT, env={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"})
    off = planned(NEXT, {"enable_flashcomm1": False}, env={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"})
    assert parts(by_key) == parts(by_variable) != parts(planned(NEXT)) == parts(off)


def test_whole_shared_experts_are_three_quarters_of_them_more_on_each_of_four_ranks() -> None:
    found, without = planned(NEXT, {"enable_shared_expert_dp": True}), planned(NEXT)
    whole = 48 * 3 * 2048 * 512 * 2
    assert parts(found)[0] - parts(without)[0] == whole * 3 // 4 == 216 * MIB


def test_whole_shared_experts_need_whole_experts() -> None:
    split = NEXT | {"enable_expert_parallel": False}
    assert parts(planned(split, {"enable_shared_expert_dp": True})) == parts(planned(split))


def test_fused_exchange_takes_a_communicator_less() -> None:
    on_a3 = NEXT | {"accelerator": "Ascend-910C-64GB"}
    by_key = planned(on_a3, {"enable_fused_mc2": 1})
    by_variable = planned(on_a3, env={"VLLM_ASCEND_ENABLE_FUSED_MC2": "1"})
    assert parts(by_key) == parts(by_variable) != parts(planned(on_a3))


@pytest.mark.parametrize("version", ["0.10.0rc1", "0.11.0"])
def test_its_own_scheduler_takes_no_batch_below_the_length(version: str) -> None:
    base = SMALL | {"engine_version": version, "max_model_len": 16384, "max_num_batched_tokens": 8192}
    assert planned(base).resolved.enable_chunked_prefill
    with pytest.raises(EngineRefusalError) as refused:
        planned(base, {"ascend_scheduler_config": {"enabled": True}})
    assert refused.value.code == "batch-below-length"
    larger = {"enabled": True, "max_num_batched_tokens": 16384, "max_num_seqs": 7}
    resolved = planned(base, {"ascend_scheduler_config": larger}).resolved
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (16384, 7)
    assert not resolved.enable_chunked_prefill
    cutting = {"enabled": True, "enable_chunked_prefill": True}
    assert planned(base, {"ascend_scheduler_config": cutting}).resolved.enable_chunked_prefill
    assert parts(planned(base, {"ascend_scheduler_config": {"enabled": False}})) == parts(planned(base))


def test_a_key_without_a_known_size_widens_the_interval() -> None:
    found, without = planned(NEXT, {"mega_moe_max_tokens": 4096}), planned(NEXT)
    assert codes(found) == ["additional-config-unsized"]
    (low, high), (own_low, own_high) = interval(found), interval(without)
    assert own_low - low == pytest.approx(GIB, rel=0.01)
    assert high - own_high == pytest.approx(GIB, rel=0.01)
    assert codes(planned(NEXT, {"multistream_overlap_gate": False, "layer_sharding": []})) == []


def test_redundant_experts_are_stored_where_their_load_is_balanced() -> None:
    without = planned(NEXT)
    balanced = planned(NEXT, {"eplb_config": {"dynamic_eplb": True, "num_redundant_experts": 16}})
    one_expert = 48 * 3 * 2048 * 512 * 2
    assert balanced.parameter_bytes_per_rank - without.parameter_bytes_per_rank == 16 // 4 * one_expert
    assert parts(planned(NEXT, {"eplb_config": {"num_redundant_experts": 16}})) == parts(without)
    former = NEXT | {"engine_version": "0.11.0"}
    always = planned(former, {"init_redundancy_expert": 16}).parameter_bytes_per_rank
    assert always - planned(former).parameter_bytes_per_rank == 16 // 4 * one_expert


SPARSE = {
    "model": "zai-org/GLM-5", "accelerator": "Ascend-910C-64GB", "engine": "vllm-ascend", "engine_version": "0.23.0",
    "tensor_parallel_size": 16, "data_parallel_size": 2, "enable_expert_parallel": True, "max_model_len": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "additional", "is_whole"),
    [("0.18.0", None, True), ("0.23.0", None, False), ("0.23.0", {"enable_dsa_cp": True}, True)],
)
def test_sparse_attention_cut_by_tokens_needs_all_heads_on_each_rank(
    version: str, additional: dict[str, Any] | None, is_whole: bool
) -> None:
    flashcomm = SPARSE | {"env": {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}}
    config = scenario(SPARSE).config.raw
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    queries = config["q_lora_rank"] * heads * (nope + config["qk_rope_head_dim"])
    keys = config["kv_lora_rank"] * heads * (nope + config["v_head_dim"])
    found = planned(flashcomm | {"engine_version": version}, additional).parameter_bytes_per_rank
    without = planned(flashcomm).parameter_bytes_per_rank
    whole = config["num_hidden_layers"] * 2 * (queries + keys) * 15 // 16
    assert found - without == (whole if is_whole else 0)


@pytest.mark.parametrize(
    ("version", "key"), [("0.18.0", "enable_sparse_c8"), ("0.23.0", "enable_sparse_li_c8")]
)
def test_keys_of_an_indexer_in_eight_bits_are_641_of_704_elements(version: str, key: str) -> None:
    """512 latents, 64 of rope, 128 bytes of keys and a scale of two bytes."""
    base = SPARSE | {"engine_version": version, "measured": {"available_kv_gib": 8}}
    found, without = (planned(base, said).cache for said in ({key: True}, None))
    assert found is not None
    assert without is not None
    sizes = tuple(one.figures.bytes_per_token.value for one in (found, without))
    assert sizes == (78 * 641 * 2, 78 * 704 * 2)


@pytest.mark.parametrize(
    ("version", "additional"),
    [
        ("0.9.1", {"lmhead_tp_size": 4}),
        ("0.11.0", {"lmhead_tensor_parallel_size": 4}),
        ("0.23.0", {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 4}}),
    ],
)
def test_an_output_head_that_four_data_parallel_ranks_share(version: str, additional: dict[str, Any]) -> None:
    base = {
        "model": "Qwen/Qwen3-30B-A3B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend",
        "engine_version": version, "data_parallel_size": 4, "enable_expert_parallel": True,
    }  # fmt: skip
    saved = planned(base).parameter_bytes_per_rank - planned(base, additional).parameter_bytes_per_rank
    assert saved == 151_936 * 2048 * 2 * 3 // 4


@pytest.mark.parametrize(
    ("name", "elements"),
    [("mlp", 3 * 2048 * 10944), ("embedding", 102_400 * 2048), ("oproj", 27 * 16 * 128 * 2048)],
)
def test_single_modules_that_two_data_parallel_ranks_share(name: str, elements: int) -> None:
    base = {
        "model": "deepseek-ai/DeepSeek-V2-Lite", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend",
        "engine_version": "0.23.0", "data_parallel_size": 2, "enable_expert_parallel": True,
    }  # fmt: skip
    asked = {"finegrained_tp_config": {f"{name}_tensor_parallel_size": 2}}
    decodes = base | {"kv_transfer_config": {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer"}}
    saved = planned(base).parameter_bytes_per_rank - planned(decodes, asked).parameter_bytes_per_rank
    assert saved == elements * 2 // 2


XLITE = {"xlite_graph_config": {"enabled": True}}


@pytest.mark.parametrize(
    ("additional", "changes", "code"),
    [
        ({"finegrained_tp_config": {"lmhead_tensor_parallel_size": 3}}, {}, "npu-refuses-module-ranks"),
        (XLITE, {"pipeline_parallel_size": 2}, "npu-refuses-xlite-stages"),
        (
            XLITE,
            {
                "engine_version": "0.18.0",
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            },
            "npu-refuses-xlite-drafts",
        ),
        (XLITE, {"engine_version": "0.18.0", "block_size": 64}, "npu-refuses-xlite-blocks"),
    ],
)
def test_what_it_does_not_go_together_with_is_refused_in_the_engines_words(
    additional: dict[str, Any], changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(EngineRefusalError) as refused:
        planned(SMALL, additional, **changes)
    assert refused.value.code == code


def test_context_parallel_sparse_attention_needs_flashcomm() -> None:
    with pytest.raises(EngineRefusalError) as refused:
        planned(SPARSE, {"enable_dsa_cp": True})
    assert refused.value.code == "npu-refuses-context-without-flashcomm"
    assert planned(SPARSE, {"enable_dsa_cp": True}, engine_version="0.27.1rc1").weights.parameters
    assert planned(SPARSE, {"enable_dsa_cp": True, "enable_flashcomm1": True}).weights.parameters


@pytest.mark.parametrize(
    ("key", "value", "read_by"),
    [
        ("enable_sparse_c8", True, {"0.24.0rc1", "0.25.1rc1"}),
        ("enable_sparse_li_c8", True, {"0.23.0", "0.26.0rc1", "0.27.1rc1", "0.30.0rc2"}),
        ("mc2_comm_alg", "fullmesh", {"0.26.0rc1", "0.27.1rc1", "0.30.0rc2"}),
        ("dynamic_spec_config", {}, {"0.27.1rc1", "0.30.0rc2"}),
        ("enable_reduce_sample", False, {"0.23.0", "0.24.0rc1", "0.25.1rc1", "0.26.0rc1", "0.27.1rc1"}),
        ("multistream_engram_overlap", True, {"0.30.0rc2"}),
    ],
)
def test_candidates_after_0_23_read_their_own_keys_and_stop_for_others_from_0_27_on(
    key: str, value: Any, read_by: set[str]
) -> None:
    """vllm_ascend/ascend_config.py:AscendConfig of each; from 0.27.1rc1 on its fields are checked: extra="forbid"."""
    for version in ("0.23.0", "0.24.0rc1", "0.25.1rc1", "0.26.0rc1", "0.27.1rc1", "0.30.0rc2"):
        base = SMALL | {"engine_version": version}
        if version in read_by:
            assert "additional-config-not-read" not in codes(planned(base, {key: value}))
        elif version < "0.27":
            assert "additional-config-not-read" in codes(planned(base, {key: value}))
        else:
            with pytest.raises(EngineRefusalError) as refusal:
                planned(base, {key: value})
            assert (refusal.value.code, refusal.value.params["value"]) == ("npu-refuses-unknown-key", key)
