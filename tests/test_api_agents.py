"""The tools for agents, asked by the official client of the Model Context Protocol: over pipes and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from jsonschema import Draft202012Validator
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from kvcore.api.agents import FIRST_FIELDS
from kvcore.contract.result import answer
from tests.api_server import ANSWER_SECONDS, GENEROUS, GOOD, running_api

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = "https://plan.example.org"
STDIO: Final = StdioServerParameters(
    command=sys.executable,
    args=["-m", "kvcore", "mcp"],
    cwd=ROOT,
    env={"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
)


def with_client(server: Any, ask: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Runs `ask` with a client that is connected to a server."""

    async def run() -> None:
        async with Client(server, read_timeout_seconds=ANSWER_SECONDS, **options) as client:
            await ask(client)

    asyncio.run(run())


async def called(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool, the same as text and as data."""
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    found: dict[str, Any] = json.loads(content.text)
    assert result.structured_content == found
    assert result.is_error == ("next_step" in found)
    return found


async def check_all_tools(client: Client, base: str | None) -> None:
    """Each tool once: its description, an answer, what shows where the answer is from."""

    def check_page(found: dict[str, Any], path: str) -> None:
        """A link is there exactly where there are pages."""
        if base is None:
            assert "page" not in found
        else:
            assert found["page"].startswith(base + path)

    assert client.instructions is not None
    assert "interval" in client.instructions
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["catalogue", "check", "fields", "plan", "read_log", "sweep", "workload"]
    assert (
        len(json.dumps([tool.model_dump(mode="json", exclude_none=True) for tool in tools.values()])) <= 8000
    )
    for name in FIRST_FIELDS:
        assert tools["plan"].input_schema["properties"][name]["description"], name
    assert "enforce_eager" in tools["plan"].input_schema["properties"]["flags"]["description"]
    for tool in tools.values():
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False

    plan = await called(client, "plan", **GOOD)
    expected = json.loads(json.dumps(answer(json.dumps(GOOD))))
    assert {name: plan[name] for name in expected} == expected
    low, high = plan["interval_gib"]["kv_cache"]
    assert low <= plan["per_rank_gib"]["kv_cache"] <= high
    assert plan["sources"]["weights"]["grade"] == "derived"
    check_page(plan, "/?v=1&model=Qwen/Qwen3-32B")
    for folded in ({"enforce_eager": True}, {"flags": {"enforce_eager": True}}):
        eager = await called(client, "plan", **GOOD, **folded)
        assert "--enforce-eager" in eager["launch"]

    swept = await called(client, "sweep", models=["Qwen/Qwen3-32B"], accelerators=["H100-80GB"])
    assert [cell["tensor_parallel_size"] for cell in swept["cells"]] == [1, 2, 4, 8]
    assert "more" not in swept
    check_page(swept, "/explore?model=Qwen/Qwen3-32B")
    every = await called(client, "sweep", models=["Qwen/Qwen3-32B"], flags={"kv_cache_dtype": "fp8"})
    assert len(json.dumps(every)) <= 20_000
    assert every["more"]["cells"] > 100
    assert every["cells"][0]["verdict"] == "fits"
    assert [cell["gpus"] for cell in every["cells"]] == sorted(cell["gpus"] for cell in every["cells"])

    read = await called(client, "read_log", log="Available KV cache memory: 52.80 GiB")
    assert read["measured"] == {"available_kv_gib": 52.8}
    check_page(read, "/check")

    files = {"run.sh": "vllm serve Qwen/Qwen3-8B --max-model-len 8192", ".env": "A=1"}
    checked = await called(client, "check", files=files, accelerator="L4-24GB")
    assert [one["verdict"] for one in checked["workloads"]] == ["starts"]

    line = '{"prompt_tokens": 900, "completion_tokens": 80}'
    workload = await called(client, "workload", log=line, max_tokens=512)
    assert (workload["recommended_max_model_len"], workload["counted_by"]) == (1412, "usage")

    found = await called(client, "catalogue", kind="accelerators", search="h100 80gb")
    assert found["accelerators"][0]["id"] == "H100-80GB"
    assert found["accelerators"][0]["source"]
    for kind in (None, "models", "accelerators"):
        found = await called(client, "catalogue", **({} if kind is None else {"kind": kind}))
        assert len(json.dumps(found)) <= 20_000
        assert found["more"]["to_see"]
        assert found[kind or "models"]
    known = (await called(client, "fields", search="max num"))["fields"]
    assert {"max_num_seqs", "max_num_batched_tokens"} <= known.keys()
    assert len(json.dumps(await called(client, "fields"))) <= 20_000


REFUSED: Final[list[tuple[str, dict[str, Any], str, str]]] = [
    ("workload", {}, "missing-field", "log"),
    ("workload", {"log": None}, "missing-field", "log"),
    ("workload", {"log": 5}, "invalid-value", "log"),
    ("workload", {"log": ["x"]}, "invalid-value", "log"),
    ("workload", {"log": "x", "max_tokens": "5"}, "invalid-value", "max_tokens"),
    ("workload", {"log": "x", "max_tokens": True}, "invalid-value", "max_tokens"),
    ("workload", {"log": "x", "max_tokens": 1.5}, "invalid-value", "max_tokens"),
    ("workload", {"log": "x", "columns": {"prompt": "in"}}, "invalid-value", "columns"),
    ("workload", {"log": "x", "base": "https://other.example"}, "unknown-field", "base"),
    ("read_log", {}, "missing-field", "log"),
    ("read_log", {"log": 7}, "invalid-value", "log"),
    ("read_log", {"log": "x", "config": []}, "invalid-value", "config"),
    ("catalogue", {"search": ["qwen"]}, "invalid-value", "search"),
    ("catalogue", {"search": True}, "invalid-value", "search"),
    ("catalogue", {"search": 7}, "invalid-value", "search"),
    ("catalogue", {"kind": ["models"]}, "invalid-value", "kind"),
    ("catalogue", {"kind": "cards"}, "invalid-value", "kind"),
    ("catalogue", {"most": "9"}, "unknown-field", "most"),
    ("plan", {"flags": [1]}, "invalid-value", "flags"),
    ("plan", {"model": "Qwen/Qwen3-8B", "flags": {"model": "Qwen/Qwen3-32B"}}, "named-twice", "model"),
    ("plan", {"model": "Qwen/Qwen3-8B", "flags": {"max_seqs": 1}}, "unknown-field", "max_seqs"),
    ("check", {}, "missing-field", "files"),
    ("check", {"files": {}}, "missing-field", "files"),
    ("check", {"files": {"a": 1}}, "invalid-value", "files"),
    ("check", {"files": {"a": "x"}, "accelerator": "H99"}, "unknown-accelerator", "accelerator"),
    ("check", {"files": {"a": "x"}, "target": 0}, "invalid-value", "wanted"),
    ("fields", {"search": 7}, "invalid-value", "search"),
]


async def check_refusals(client: Client) -> None:
    """A question without an answer gets a code, and the session goes on."""
    refused = await called(client, "plan", **{**GOOD, "tensor_parallel_size": 3})
    assert (refused["code"], refused["field"]) == ("heads-not-divisible", "tensor_parallel_size")
    assert (await called(client, "plan", **{**GOOD, "max_num_seqs": 2**63}))["code"] == "invalid-value"
    assert (await called(client, "plan", max_seqs=1))["code"] == "unknown-field"
    for tool, arguments, code, field in REFUSED:
        refused = await called(client, tool, **arguments)
        assert (refused["code"], refused["field"]) == (code, field), (tool, arguments)
    assert (await called(client, "plan", **GOOD))["verdict"] == "fits"


def test_tools_answer_over_pipes() -> None:
    async def ask(client: Client) -> None:
        await check_all_tools(client, None)
        await check_refusals(client)

    with_client(STDIO, ask)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_answer_over_http(mode: str, tmp_path: Path) -> None:
    """By the protocol's present revision, and by the one before it with its handshake."""

    async def ask(client: Client) -> None:
        await check_all_tools(client, PAGES)
        await check_refusals(client)

    with running_api(tmp_path / "log", {**GENEROUS, "KVPLANNER_URL": PAGES}) as address:
        with_client(f"{address}/mcp", ask, mode=mode)


def test_a_body_that_is_no_message_is_refused_and_not_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_api(log) as address:
        got = httpx2.get(f"{address}/mcp", timeout=ANSWER_SECONDS)
        assert (got.status_code, got.headers["allow"]) == (405, "POST")
        for body in (
            b"",
            b"secret-words",
            b'{"jsonrpc": "2.0", "method": "secret-words", "id": 1}',
            b"[" * 10**6,
        ):
            sent = httpx2.post(f"{address}/mcp", content=body, timeout=ANSWER_SECONDS, headers={
                "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            })  # fmt: skip
            assert sent.status_code < 500
        foreign = {"Origin": "https://other.example"}
        assert httpx2.post(f"{address}/mcp", headers=foreign, timeout=ANSWER_SECONDS).status_code == 403
    assert "secret-words" not in log.read_text("utf-8")
