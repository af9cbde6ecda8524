"""After the start: a first request by curl and by the SDK, and commands that watch server and cards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from msgspec import Struct

from kvcore.deploy.going_live import SECONDS, Load
from kvcore.deploy.launch import PORT, served_model
from kvcore.deploy.templates import filled, templates
from kvcore.planning import Plan
from kvcore.scenario import Runner

SCRIPT: Final = "memory_check.py"
CLASSIFIES: Final = "ForSequenceClassification"
"""Ending of the class names of models that score texts. Source: vllm/model_executor/models/registry.py (0.33.0)."""
SPARE_TOKENS: Final = 16
"""Tokens that a tokenizer adds at both ends: the script counts words."""
MOST_PROFILE_ANSWER: Final = 64
"""Most tokens of an answer in the memory check: the peak is reached by the prompt."""


class Request(Struct, frozen=True, kw_only=True):
    """One request in two ways."""

    curl: str
    sdk: str | None
    """For the package openai; None for a route that it does not have."""


def first_request(plan: Plan, load: Load) -> Request:
    """A request to the planned server: a chat where it generates, else an embedding, or the scores of a classifier.

    Source: vllm/entrypoints/openai/api_server.py (0.33.0): /v1/chat/completions, /v1/embeddings, /classify.
    """
    kind = _kind(plan)
    facts = {
        "model": served_model(plan),
        "max_tokens": min(load.answer_tokens, max(1, plan.resolved.max_model_len // 2)),
        "port": PORT,
    }
    route: Mapping[str, Any] = filled("requests", {**facts, "quoted_model": repr(facts["model"])})[kind]
    body = json.dumps(route["body"], indent=2, ensure_ascii=False)
    curl = (
        f"curl -s http://localhost:{PORT}{route['path']} \\\n"
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}\n"
    )
    return Request(curl=curl, sdk=route.get("sdk"))


def _kind(plan: Plan) -> str:
    if plan.resolved.runner is not Runner.POOLING:
        return "chat"
    names = plan.scenario.config.raw.get("architectures") or ()
    return "classify" if any(str(name).endswith(CLASSIFIES) for name in names) else "embed"


def metrics_command(plan: Plan) -> str:
    """Shows all metrics of the alerts, without the buckets of histograms."""
    metrics = plan.resolved.engine.metrics(plan.resolved.version, plan.resolved.is_v0)
    names = "|".join(sorted({metric.name.partition(":")[2] for metric in metrics.values()}))
    prefix = plan.resolved.engine.facts.watching.prefix
    return f"curl -s http://localhost:{PORT}/metrics | grep -E '^{prefix}:({names})' | grep -v _bucket\n"


def card_commands(plan: Plan) -> str:
    """The vendor's commands that show the memory of the cards; "" where none is known."""
    return "".join(f"{line}\n" for line in templates()["watching"].get(plan.accelerator.vendor.value, ()))


def memory_check() -> str:
    """The text of memory_check.py, which watches the cards of a running server."""
    return resources.files("kvcore.deploy").joinpath(SCRIPT).read_text("utf-8")


def memory_check_commands(plan: Plan, load: Load) -> str:
    """Calls of the script: a profile with the load's prompt, and a leak check twice as long as the load test.

    A pooling server has no completions to profile.
    """
    leak = ["python3", SCRIPT, "leak", "--seconds", str(2 * SECONDS)]
    if plan.resolved.runner is Runner.POOLING:
        return f"{shlex.join(leak)}\n"
    profile = {
        "model": served_model(plan),
        "prompt-tokens": max(1, load.prompt_tokens - SPARE_TOKENS),
        "answer-tokens": min(load.answer_tokens, MOST_PROFILE_ANSWER),
    }
    flags = (word for name, value in profile.items() for word in (f"--{name}", str(value)))
    return "".join(f"{shlex.join(line)}\n" for line in (["python3", SCRIPT, "profile", *flags], leak))
