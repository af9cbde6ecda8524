"""`--kv-transfer-config`: what a connector does to the KV cache, and which server takes which key."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.controls.in_force import settings_in_force
from kvcore.deploy.shell import launch_command
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.planning import Plan, plan
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_port": "5555"}
MULTI = {
    "kv_connector": "MultiConnector", "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [NIXL, {**NIXL, "kv_connector": "MooncakeStoreConnector"}]},
}  # fmt: skip
PRODUCER = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer"}
CONSUMER = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer"}
GEMMA = {
    "model": "google/gemma-3-27b-it", "accelerator": "H100-80GB", "max_model_len": 32_768,
    "measured": {"available_kv_gib": 20.0},
}  # fmt: skip
WHOLE_TOKENS = 20 * GIB // (16 * 62 * 2 * 16 * 128 * 2) * 16
"""All of its 62 layers keep keys and values of every token, 16 heads of 128 in 16 bits, in blocks of 16."""


def planned(**fields: Any) -> Plan:
    return plan(scenario_from_request(GEMMA | fields))


def tokens(**fields: Any) -> int:
    cache = planned(**fields).cache
    assert cache is not None
    return cache.tokens


@pytest.mark.parametrize(
    ("version", "config", "asked", "is_joined"),
    [
        ("0.11.0", NIXL, None, True),
        ("0.11.0", NIXL, False, True),
        ("0.21.0", NIXL, None, True),
        ("0.21.0", NIXL, False, False),
        ("0.23.0", NIXL, None, False),
        # LMCache issue 3419: LMCacheConnectorV1 is no subclass of SupportsHMA, and halves the pool of hybrid models.
        ("0.23.0", LMCACHE, None, True),
        ("0.23.0", MULTI, None, False),
        ("0.23.0", {**MULTI, "kv_connector_extra_config": {"connectors": [NIXL, LMCACHE]}}, None, True),
        (
            "0.23.0",
            {
                **NIXL,
                "kv_connector": "OffloadingConnector",
                "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 30},
            },
            None,
            False,
        ),
        ("0.23.0", {**NIXL, "kv_connector": "MoRIIOConnector"}, None, True),
        ("0.30.0", {**NIXL, "kv_connector": "MoRIIOConnector"}, None, False),
        ("0.32.0", {**NIXL, "kv_connector": "UMBPStoreConnector"}, None, True),
        ("0.33.0", {**NIXL, "kv_connector": "UMBPStoreConnector"}, None, False),
        ("0.23.0", NIXL, True, True),
        ("0.23.0", None, None, False),
    ],
)
def test_a_connector_without_groups_keeps_every_layer_whole(
    version: str, config: dict[str, Any] | None, asked: bool | None, is_joined: bool
) -> None:
    fields = {
        "engine_version": version,
        "kv_transfer_config": config,
        "disable_hybrid_kv_cache_manager": asked,
    }
    alone = tokens(engine_version=version)
    assert alone != WHOLE_TOKENS
    assert tokens(**fields) == (WHOLE_TOKENS if is_joined else alone)
    said = "kv-connector-joins-groups" in {one.code for one in planned(**fields).notices}
    assert said is (is_joined and not asked)


@pytest.mark.parametrize(
    ("version", "fields", "is_joined"),
    [
        ("0.20.0", {"disable_hybrid_kv_cache_manager": True}, True),
        ("0.20.0", {"env": {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}}, False),
        ("0.21.0", {}, False),
        ("0.23.0", {}, False),
        ("0.23.0", {"kv_offloading_backend": "lmcache"}, False),
        ("0.33.0", {"env": {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}}, False),
    ],
)
def test_offloading_is_a_connector_too(version: str, fields: dict[str, Any], is_joined: bool) -> None:
    alone = tokens(engine_version=version)
    assert tokens(engine_version=version, kv_offloading_size=64, **fields) == (
        WHOLE_TOKENS if is_joined else alone
    )


@pytest.mark.parametrize(
    ("version", "config", "refused"),
    [
        ("0.23.0", LMCACHE, "LMCacheConnectorV1"),
        ("0.19.0", NIXL, "NixlConnector"),
        ("0.20.0", NIXL, None),
        ("0.29.0", {**NIXL, "kv_connector": "MoRIIOConnector"}, "MoRIIOConnector"),
        ("0.23.0", {**NIXL, "kv_connector": "OurOwnConnector"}, None),
        ("0.11.0", LMCACHE, None),
    ],
)
def test_groups_may_not_be_asked_for_where_the_connector_has_none(
    version: str, config: dict[str, Any], refused: str | None
) -> None:
    """KVConnectorFactory.create_connector raises where the switch is off and the class is no SupportsHMA."""
    asked = {
        "engine_version": version,
        "kv_transfer_config": config,
        "disable_hybrid_kv_cache_manager": False,
    }
    if refused is None:
        assert planned(**asked).cache is not None
        return
    with pytest.raises(EngineRefusalError) as refusal:
        planned(**asked)
    assert (refusal.value.code, refusal.value.params["value"]) == ("connector-without-groups", refused)


def test_a_model_of_one_kind_of_layers_does_not_care() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "engine_version": "0.23.0"}
    assert tokens(**asked) == tokens(**asked, kv_transfer_config=LMCACHE)
    assert all(
        one.code != "kv-connector-joins-groups"
        for one in planned(**asked, kv_transfer_config=LMCACHE).notices
    )


def test_the_release_notes_of_vllm_ascend_want_the_switch_for_deepseek_v4() -> None:
    # docs/source/user_guide/release_notes.md (0.23.0): "--no-disable-hybrid-kv-cache-manager flag must be added".
    asked = {
        "model": "deepseek-ai/DeepSeek-V4-Flash", "engine": "vllm-ascend", "engine_version": "0.20.2rc1",
        "accelerator": "Ascend-910C-64GB", "data_parallel_size": 16, "enable_expert_parallel": True,
        "quantization": "ascend", "kv_transfer_config": PRODUCER,
    }  # fmt: skip
    with pytest.raises(EngineRefusalError) as refusal:
        planned(**asked)
    assert refusal.value.code == "cache-kinds-not-unifiable"
    assert planned(**asked, disable_hybrid_kv_cache_manager=False).cache is not None


OUTPUT = {"finegrained_tp_config": {"oproj_tensor_parallel_size": 2}}


@pytest.mark.parametrize(
    ("version", "keys", "taken_by"),
    [
        ("0.18.0", {"layer_sharding": ["o_proj"]}, (None, PRODUCER, CONSUMER)),
        ("0.23.0", {"layer_sharding": ["o_proj"]}, (PRODUCER,)),
        ("0.17.0rc1", {"recompute_scheduler_enable": True}, (None, PRODUCER, CONSUMER)),
        ("0.23.0", {"recompute_scheduler_enable": True}, (PRODUCER, CONSUMER)),
        ("0.23.0", {"recompute_scheduler_enable": False}, (None, PRODUCER, CONSUMER)),
        ("0.23.0", {"enable_balance_scheduling": True}, (None,)),
        ("0.23.0", {"enable_reduce_sample": True}, (None, CONSUMER)),
        ("0.22.1rc1", {"enable_reduce_sample": True}, (None, PRODUCER, CONSUMER)),
        ("0.18.0", {"enable_kv_nz": True}, (CONSUMER,)),
        ("0.13.0", OUTPUT, (CONSUMER,)),
        ("0.23.0", OUTPUT, (CONSUMER,)),
    ],
)
def test_keys_of_prefill_and_decode_nodes_are_refused_elsewhere(
    version: str, keys: dict[str, Any], taken_by: tuple[dict[str, Any] | None, ...]
) -> None:
    for config in (None, PRODUCER, CONSUMER):
        asked = {
            "model": "Qwen/Qwen3-30B-A3B", "engine": "vllm-ascend", "engine_version": version,
            "accelerator": "Ascend-910B3-64GB", "data_parallel_size": 2, "enable_expert_parallel": True,
            "additional_config": keys, "kv_transfer_config": config,
        }  # fmt: skip
        if config in taken_by:
            planned(**asked)
            continue
        with pytest.raises(EngineRefusalError) as refusal:
            planned(**asked)
        assert (refusal.value.code, refusal.value.field) == ("npu-refuses-node-keys", "additional_config")
        assert refusal.value.params["role"] == (config["kv_role"] if config else "none")


def test_link_command_and_chip_have_what_was_said() -> None:
    found = planned(
        kv_transfer_config=LMCACHE | {"kv_connector_extra_config": {"sizes": [1, 2]}}, engine_version="0.23.0"
    )
    again = link.decode(link.encode(found.scenario))
    assert (again.repairs, again.scenario) == ((), found.scenario)
    command = launch_command(found)
    assert '"kv_connector":"LMCacheConnectorV1"' in command
    assert '"sizes":[1,2]' in command
    chips = [one.text for one in settings_in_force(found.scenario, words(Language.ENGLISH))]
    assert "kv_transfer_config LMCacheConnectorV1 kv_both" in chips
    read = scenario_from_log(read_log(command)).scenario
    assert read.kv_transfer_config is not None
    assert '"kv_connector":"LMCacheConnectorV1"' in read.kv_transfer_config


def test_a_log_says_its_connector() -> None:
    log = (
        "INFO 10-28 21:14:48 [utils.py:253] non-default args: {'model': 'Qwen/Qwen3-8B', 'kv_transfer_config': "
        "KVTransferConfig(kv_connector='NixlConnector', kv_buffer_size=1000000000.0, kv_role='kv_both', kv_rank=None, "
        "kv_connector_extra_config={}), 'max_num_seqs': 16}"
    )
    assert scenario_from_log(read_log(log)).scenario.kv_transfer_config == (
        '{"kv_connector":"NixlConnector","kv_buffer_size":1000000000.0,"kv_role":"kv_both",'
        '"kv_connector_extra_config":{}}'
    )


def test_an_unknown_key_or_role_is_refused_by_name() -> None:
    for config, field in (
        ({"kv_conector": "NixlConnector"}, "kv_transfer_config.kv_conector"),
        ({"kv_connector": "NixlConnector", "kv_role": "both"}, "kv_transfer_config.kv_role"),
    ):
        with pytest.raises(ScenarioError) as error:
            planned(kv_transfer_config=config)
        assert error.value.field == field
