"""Names as people have them, and the model that each means."""

from __future__ import annotations

import pytest

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, KvPlannerError
from kvcore.catalogue.names import LONGEST, NAMES, Recognition, recognized, repository_of
from kvcore.evidence.log.reader import read_log
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

CARD = {"accelerator": "H100-80GB"}


@pytest.mark.parametrize(
    ("text", "model", "how"),
    [
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B", "id"),
        (" qwen/qwen3-32b ", "Qwen/Qwen3-32B", "id"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9216db5781bf", "Qwen/Qwen3-32B", "cache-path"),
        ("models--deepseek-ai--DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash", "cache-path"),
        (r"D:\hf\hub\models--Qwen--Qwen3-8B\snapshots\0123abc", "Qwen/Qwen3-8B", "cache-path"),
        ("/hub/models--acme--Own-Model-7B/snapshots/0123abcd", "acme/Own-Model-7B", "cache-path"),
        ("/root/.cache/modelscope/hub/models/Qwen/Qwen2___5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "cache-path"),
        ("/root/.cache/modelscope/hub/LLM-Research/x", "LLM-Research/x", "cache-path"),
        ("/models/Qwen3-8B/", "Qwen/Qwen3-8B", "path"),
        ("./qwen3_8b", "Qwen/Qwen3-8B", "path"),
        ("~/weights/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "path"),
        ("/mnt/nvme/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "path"),
        ("/mnt/nvme/nvidia/Qwen3-30B-A3B-NVFP4", "nvidia/Qwen3-30B-A3B-NVFP4", "path"),
        ("/data/LLM-Research/gemma-2-9b-it", "google/gemma-2-9b-it", "path"),
        ("models/Qwen3-8B", "Qwen/Qwen3-8B", "path"),
        ("/kaggle/input/qwen-3/transformers/8b/1", "Qwen/Qwen3-8B", "path"),
        ("/kaggle/input/llama-3.1/transformers/8b-instruct/2", "meta-llama/Llama-3.1-8B-Instruct", "path"),
        ("google/gemma-3/transformers/gemma-3-27b-it/1", "google/gemma-3-27b-it", "path"),
        ("Qwen3-8B", "Qwen/Qwen3-8B", "name"),
        ("gemma-3-27b-it", "google/gemma-3-27b-it", "name"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "name"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "renamed"),
        ("meta-llama/Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B-Instruct", "renamed"),
        ("LLM-Research/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "mirror"),
        ("ZhipuAI/GLM-4.6", "zai-org/GLM-4.6", "mirror"),
        ("MiniMax/MiniMax-M2.5", "MiniMaxAI/MiniMax-M2.5", "mirror"),
    ],
)  # fmt: skip
def test_what_a_name_means(text: str, model: str, how: str) -> None:
    found = recognized(text)
    assert found is not None
    assert (found.model, found.how.value) == (model, how)


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "...",
        "somebody/Qwen3-8B", "Qwen/Qwen3-9B", "/models/my-own", "ZhipuAI/Qwen3-8B", "config.json",
        "a/b/c/d",
        "unsloth/Qwen3.6-35B-A3B-NVFP4", "/kaggle/input/1", "\x00", "models--", "x" * 100_000,
        "/" * 50_000, "models--a--" + "b" * 100_000,
    ],
)  # fmt: skip
def test_what_means_no_bundled_model(text: str) -> None:
    found = recognized(text)
    assert found is None or (found.how is Recognition.CACHE and len(found.model) <= LONGEST)


def test_a_log_may_give_a_path_of_two_parts() -> None:
    assert recognized("somebody/Qwen3-8B", any_owner=True) is not None


@pytest.mark.parametrize("text", ["/models/Qwen3-30B-A3B-NVFP4", "Qwen3-30B-A3B-NVFP4"])
def test_a_name_of_several_models_is_not_guessed(text: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        recognized(text)
    assert caught.value.code == "ambiguous-model"
    assert "nvidia/" in caught.value.params["near"]
    assert "RedHatAI/" in caught.value.params["near"]
    with pytest.raises(KvPlannerError) as refused:
        scenario_from_request({"model": text, **CARD})
    assert (refused.value.code, refused.value.field) == ("ambiguous-model", "model")


def test_every_owner_of_the_table_is_one_of_the_catalogue() -> None:
    owners = {model.split("/")[0] for model in catalogue.known_ids()}
    for mirror, row in NAMES.load().mirror.items():
        assert owners.issuperset(row.of) or mirror in owners, mirror


def test_the_plan_says_what_a_path_was_taken_to_be() -> None:
    path = "/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/b968826d9c46"
    planned = plan(scenario_from_request({"model": path, **CARD}))
    own = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", **CARD}))
    (said,) = [notice for notice in planned.notices if notice.code == "model-recognized"]
    assert said.params["model"] == "Qwen/Qwen3-8B"
    assert planned.scenario.model == path
    assert planned.cache == own.cache
    assert all(notice.code != "model-recognized" for notice in own.notices)


def test_a_config_of_ones_own_under_a_known_name_is_said_to_differ() -> None:
    config = {**catalogue.find_model("Qwen/Qwen3-8B").config.raw, "num_hidden_layers": 40}
    planned = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "config": config, **CARD}))
    (said,) = [notice for notice in planned.notices if notice.code == "config-differs-from-catalogue"]
    assert said.params["keys"] == "num_hidden_layers"


def test_the_cache_of_a_repository_that_is_not_bundled_is_asked_for_by_its_id() -> None:
    asked: list[str] = []

    def fetch(model: str) -> object:
        asked.append(model)
        raise CatalogueError("unknown-model", field="model", value=model, near="")

    with pytest.raises(KvPlannerError):
        scenario_from_request({"model": "/hub/models--acme--Own-7B/snapshots/0123abcd", **CARD}, fetch)  # type: ignore[arg-type]
    assert asked == ["acme/Own-7B"]


def test_only_paths_of_caches_state_a_repository() -> None:
    assert repository_of("/models/Qwen3-8B") is None
    assert repository_of("Qwen/Qwen3-8B") is None


def test_a_log_says_how_it_names_the_model() -> None:
    cached = "/root/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9216db5781bf"
    log = read_log(f"non-default args: {{'model': '{cached}', 'max_model_len': 8192}}")
    said = [found for found in log.notices if found.code == "model-recognized"]
    assert [(found.params["given"], found.params["model"]) for found in said] == [(cached, "Qwen/Qwen3-32B")]


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve /models/current --served-model-name Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        (
            "non-default args: {'model': '/mnt/w', 'served_model_name': ['qwen3-32b', 'gpt'], 'max_model_len': 8192}",
            "Qwen/Qwen3-32B",
        ),
        ("vllm serve Qwen/Qwen3-8B --served-model-name Qwen/Qwen3-32B", "Qwen/Qwen3-8B"),
        ("vllm serve /models/current --served-model-name gpt-4o", "/models/current"),
        ("vllm serve models/current --served-model-name Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("vllm serve somebody/GLM-5.1-NVFP4-MTP --served-model-name GLM-5", "somebody/GLM-5.1-NVFP4-MTP"),
    ],
)
def test_the_served_name_tells_the_model_where_its_path_does_not(line: str, model: str) -> None:
    assert read_log(line).model == model
