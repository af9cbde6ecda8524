"""After the start: the first request as curl and as the SDK sends it, and commands that look at server and cards."""

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
from kvcore.engines.vllm.availability import exported_metrics
from kvcore.planning import Plan
from kvcore.scenario import Runner

SCRIPT: Final = "memory_check.py"
CLASSIFIES: Final = "ForSequenceClassification"
"""What the name of a class that scores texts ends with. Source: vllm/model_executor/models/registry.py (0.33.0)."""
SPARE_TOKENS: Final = 16
"""The script counts words: a tokenizer adds tokens of its own at both ends."""
MOST_PROFILE_ANSWER: Final = 64
"""Tokens of an answer of the memory check: its peak is that of the prompt."""


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
    """Every metric of the alerts at once, without the buckets of histograms."""
    metrics = exported_metrics(plan.resolved.version, plan.resolved.is_v0)
    names = "|".join(sorted({metric.name.removeprefix("vllm:") for metric in metrics.values()}))
    return f"curl -s http://localhost:{PORT}/metrics | grep -E '^vllm:({names})' | grep -v _bucket\n"


def card_commands(plan: Plan) -> str:
    """What shows the memory of the cards, by their vendor; "" for one whose tool is not known here."""
    return "".join(f"{line}\n" for line in templates()["watching"].get(plan.accelerator.vendor.value, ()))


def memory_check() -> str:
    """The script that looks at the cards of a running server, to take away."""
    return resources.files("kvcore.deploy").joinpath(SCRIPT).read_text("utf-8")


def memory_check_commands(plan: Plan, load: Load) -> str:
    """How it is called: the prompt of the load, and a leak check twice as long as the load test.

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
