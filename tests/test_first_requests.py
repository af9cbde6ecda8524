"""The first request, and commands that watch server and cards."""

from __future__ import annotations

import ast
import json
import re
import shlex
from typing import Any

import pytest

from kvcore.deploy.first_requests import (
    card_commands,
    first_request,
    memory_check,
    memory_check_commands,
    metrics_command,
)
from kvcore.deploy.going_live import Load, default_load
from kvcore.engines.vllm.availability import exported_metrics
from tests import present_plans

LOAD = Load(requests=8, prompt_tokens=1200, answer_tokens=512)
CLASSIFIER = {
    "architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip


def sent(curl: str) -> tuple[str, dict[str, Any]]:
    """URL and body of a curl command, as a shell gives them to it."""
    words = shlex.split(curl.replace("\\\n", " "))
    body: dict[str, Any] = json.loads(words[words.index("-d") + 1])
    return next(word for word in words if word.startswith("http")), body


def called(sdk: str) -> dict[str, Any]:
    """The arguments of the call in a program for the SDK, which has to be Python."""
    calls = [node for node in ast.walk(ast.parse(sdk)) if isinstance(node, ast.Call)]
    create = next(one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "create")
    return {str(word.arg): ast.literal_eval(word.value) for word in create.keywords}


def test_curl_and_sdk_send_the_same_chat() -> None:
    request = first_request(present_plans.fits(), LOAD)
    url, body = sent(request.curl)
    assert url == "http://localhost:8000/v1/chat/completions"
    assert (body["model"], body["max_tokens"]) == ("Qwen/Qwen3-32B", 512)
    assert request.sdk is not None
    assert called(request.sdk) == body


def test_a_pooling_model_is_asked_for_an_embedding() -> None:
    plan = present_plans.request(model="Qwen/Qwen3-Embedding-8B")
    request = first_request(plan, LOAD)
    url, body = sent(request.curl)
    assert url == "http://localhost:8000/v1/embeddings"
    assert request.sdk is not None
    assert called(request.sdk) == body
    assert "profile" not in memory_check_commands(plan, LOAD)


def test_a_classifier_is_asked_for_its_scores() -> None:
    request = first_request(present_plans.request(model="own/classifier", config=CLASSIFIER), LOAD)
    url, body = sent(request.curl)
    assert (url, body["model"]) == ("http://localhost:8000/classify", "own/classifier")
    assert request.sdk is None


@pytest.mark.parametrize("name", ["it's/a\"model", "$(reboot)/`x`", "a\\b/c", "-x/y", "😀/模型"])
def test_a_name_is_never_part_of_a_command(name: str) -> None:
    plan = present_plans.renamed(present_plans.fits(), name)
    request = first_request(plan, LOAD)
    served = f"./{name}" if name.startswith("-") else name
    assert sent(request.curl)[1]["model"] == served
    assert request.sdk is not None
    assert called(request.sdk)["model"] == served
    words = shlex.split(memory_check_commands(plan, LOAD).splitlines()[0])
    assert words[words.index("--model") + 1] == served


@pytest.mark.parametrize("version", ["0.6.6", "0.8.5", "0.11.0", "0.33.0"])
def test_the_metrics_command_finds_every_metric_of_the_version(version: str) -> None:
    plan = present_plans.request(engine_version=version)
    words = shlex.split(metrics_command(plan))
    pattern = re.compile(words[words.index("-E") + 1])
    for metric in exported_metrics(plan.resolved.version, plan.resolved.is_v0).values():
        assert all(pattern.search(series) for series in metric.series), metric.name


@pytest.mark.parametrize(
    ("card", "tool"),
    [
        ("H100-80GB", "nvidia-smi"),
        ("MI300X-192GB", "rocm-smi"),
        ("Ascend-910B3-64GB", "npu-smi"),
        ("Gaudi3-128GB", ""),
    ],
)
def test_cards_are_looked_at_with_their_vendor_s_tool(card: str, tool: str) -> None:
    commands = card_commands(present_plans.request(accelerator=card, dtype="bfloat16"))
    assert (tool in commands) if tool else not commands


def test_the_memory_check_leaves_room_for_the_tokenizer_s_own_tokens() -> None:
    plan = present_plans.fits()
    load = default_load(plan)
    words = shlex.split(memory_check_commands(plan, load).splitlines()[0])
    assert int(words[words.index("--prompt-tokens") + 1]) < load.prompt_tokens
    assert words[1] == "memory_check.py"
    ast.parse(memory_check())
