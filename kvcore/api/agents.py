"""The API as tools of the Model Context Protocol: on standard input and output, and over HTTP at /mcp.

Every tool only reads. Its answer is that of the API, with intervals, grades, sources and the link of the page that
shows it; an error is the API's problem, with its code and next step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from msgspec import Struct

from kvcore.api.limits import BODY_BYTES, Settings
from kvcore.api.operations import KINDS, MOST, Answered, Asked
from kvcore.api.pool import Pool
from kvcore.api.problems import problem_bytes
from kvcore.api.routes import Api
from kvcore.base.errors import KvPlannerError, ScenarioError, defect, invalid
from kvcore.flags.schema import request_schema
from kvcore.version import VERSION

Answers = Callable[[Asked], Awaitable[Answered]]
"""Computes the answer to a tool's question. Raises ScenarioError where there is no time for it."""
INSTRUCTIONS: Final = (
    "Plans the memory of each GPU or NPU that serves a large language model with vLLM, vllm-ascend or "
    "vllm-mindspore. Fields are the engine's own flag names; a flag that is left out takes the default of that "
    "release on that accelerator. Look ids up with `catalogue` (search), rarer flags with `fields`. `plan` says "
    "whether a deployment fits: `verdict`, `per_rank_gib` with the 80 % intervals in `interval_gib`, how well each "
    "part is known in `sources`, and for what does not fit `fixes`, each a single change that does. Quote intervals "
    "with the figures. Where there is a `page`, give people that link. `more` says what an answer leaves out."
)
MOST_BYTES: Final = 17_500
"""Of the rows of an answer, so that all of it stays below 20 kB, however it is written."""
FIRST_FIELDS: Final = (
    "model", "accelerator", "tensor_parallel_size", "max_model_len", "wanted", "max_num_seqs",
    "gpu_memory_utilization", "kv_cache_dtype", "quantization", "engine_version",
)  # fmt: skip
"""Fields that a tool describes one by one."""
DESCRIPTIONS: Final[Mapping[str, str]] = {
    "model": "Id on the Hub, such as Qwen/Qwen3-32B",
    "accelerator": "Id of a card, such as H100-80GB",
    "tensor_parallel_size": "GPUs that share each layer",
    "max_model_len": "Tokens of the longest request, prompt and answer; none: what the model allows",
    "wanted": "Requests of that length to serve at once: a target",
    "max_num_seqs": "Most requests that run at once",
    "gpu_memory_utilization": "Share of a card that the engine takes",
    "kv_cache_dtype": "auto, fp8, ...",
    "quantization": "Of a checkpoint that is none: fp8, bitsandbytes",
    "engine_version": "Release of the engine, such as 0.33.0; none: the newest",
}


class Tool(Struct, frozen=True, kw_only=True):
    """One tool: the operation behind it, and how its arguments become a question."""

    operation: str
    title: str
    text: str
    schema: Mapping[str, Any]
    is_body: bool = True
    """The arguments are the body; otherwise they are options, and `body_field` names the one that is the body."""
    body_field: str = ""
    is_open: bool = False
    """Takes further fields of a request, beside the others or in `flags`."""
    most: int = 0
    """Most bytes of its rows."""

    def asked(self, arguments: Mapping[str, Any], base: str | None) -> Asked:
        """The question. Raises ScenarioError `unknown-field`, `missing-field` or `invalid-value`.

        The operation checks the body, more exactly than the schema.
        """
        if self.is_open:
            arguments = _unfolded(arguments)
        for name in arguments:
            if name not in self.schema["properties"] and not self.is_open:
                raise ScenarioError("unknown-field", field=name)
        for name in self.schema.get("required", ()):
            if arguments.get(name) is None:
                raise ScenarioError("missing-field", field=name)
        own = {} if base is None else {"base": base}
        if self.most:
            own[MOST] = str(self.most)
        if self.is_body:
            return Asked(operation=self.operation, body=json.dumps(arguments).encode(), options=own)
        texts = {name: self._text(name, value) for name, value in arguments.items() if value is not None}
        body = texts.pop(self.body_field, "")
        return Asked(operation=self.operation, body=body.encode("utf-8", "replace"), options={**texts, **own})

    def _text(self, name: str, value: object) -> str:
        """An option as text, as in an address. Raises ScenarioError `invalid-value` for one of another type."""
        if "integer" in self.schema["properties"][name].get("type", ()):
            if type(value) is not int:
                raise invalid(name, value, "it must be a whole number")
            return str(value)
        if not isinstance(value, str):
            raise invalid(name, value, "it must be a text")
        return value


def _unfolded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with those in `flags` beside the others.

    Raises ScenarioError `invalid-value` or `named-twice`.
    """
    found = dict(arguments)
    flags = found.pop(FLAGS_FOLDED, None)
    if flags is None:
        return found
    if not isinstance(flags, dict):
        raise invalid(FLAGS_FOLDED, flags, "it must be an object")
    for name, value in flags.items():
        if name in found:
            raise ScenarioError("named-twice", field=name, value=value)
    return found | flags


def _first(schema: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """The first fields of a request, described, and all others by name."""
    rows = schema["properties"]
    names = [name for name in FIRST_FIELDS if name not in left_out]
    first = {name: _short(name, rows[name]) for name in names}
    rest = ", ".join(name for name in rows if name not in (*names, *left_out, *NOT_NAMED))
    return first | {
        FLAGS_FOLDED: {"type": ["object", "null"], "description": f"Further flags by name (see `fields`): {rest}"}
    }  # fmt: skip


def _short(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A field in few bytes: what it is, and its bounds."""
    kept = {key: schema[key] for key in ("type", "minimum", "maximum") if key in schema}
    if name == "max_model_len":
        kept = {"type": ["integer", "string", "null"]}
    return {**kept, "description": DESCRIPTIONS[name]}


FLAGS_FOLDED: Final = "flags"
NOT_NAMED: Final = ("id", "hf_quant_config", "headers")
logging.getLogger("mcp").setLevel(logging.CRITICAL)
"""Silenced, as it logs messages that it cannot read; `errors.defect` logs only the place of a tool's defect."""
_LOG: Final = {"type": "string", "description": "The text of the log"}
_IDS: Final = {"type": ["array", "null"], "items": {"type": "string"}}
TOOLS: Final[Mapping[str, Tool]] = {
    "plan": Tool(
        operation="plan",
        title="Plan one deployment",
        text="Where each GiB of one GPU or NPU goes for a model, accelerator and flags; whether it fits, how many "
        "tokens and requests it has room for, which single change fixes it, and the command that starts it.",
        schema={"type": "object", "properties": _first(request_schema()), "additionalProperties": True},
        is_open=True,
    ),
    "sweep": Tool(
        operation="sweep",
        title="Compare models, accelerators and sizes",
        text="Models on accelerators at tensor parallel sizes under the same flags (those of `plan`): what starts, and "
        "how many requests it has room for; those that fit first. At most 16,384 combinations.",
        schema={
            "type": "object",
            "properties": {
                "models": {**_IDS, "description": "Ids; none for all"},
                "accelerators": {**_IDS, "description": "Ids; none for all"},
                "tensor_parallel_sizes": {"type": ["array", "null"], "items": {"type": "integer"}},
                "max_model_len": {
                    "type": ["integer", "null"],
                    "description": "None: 8192, or what the model allows",
                },
                FLAGS_FOLDED: {
                    "type": ["object", "null"],
                    "description": "Further flags by name, as of `plan`",
                },
            },
            "additionalProperties": True,
        },
        is_open=True,
        most=MOST_BYTES,
    ),
    "check": Tool(
        operation="check",
        title="Check files that are deployed",
        text="Manifests, Compose files, Helm values, scripts: for each engine in them whether it starts, why not, "
        "which change fixes it. What cannot be known is said, never guessed.",
        schema={
            "type": "object",
            "properties": {
                "files": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "description": "Name of each file with its text; those that belong together, .env too",
                },
                "accelerator": {
                    "type": ["string", "null"],
                    "description": "The card, in place of what files say",
                },
                "target": {
                    "type": ["integer", "null"],
                    "description": "Requests at once that each is to serve",
                },
            },
            "required": ["files"],
            "additionalProperties": False,
        },
    ),
    "read_log": Tool(
        operation="log",
        title="Read a start-up log",
        text="A start-up log of vLLM, vllm-ascend or vllm-mindspore: each figure with its line, the plan for the same "
        "start with its intervals and causes of differences, why a start failed and the change that fixes it.",
        schema={
            "type": "object",
            "properties": {
                "log": _LOG,
                "config": {
                    "type": ["object", "null"],
                    "description": "config.json of a model that is not bundled",
                },
                "accelerator": {
                    "type": ["string", "null"],
                    "description": "The card, in place of what the log says",
                },
            },
            "required": ["log"],
            "additionalProperties": False,
        },
    ),
    "workload": Tool(
        operation="workload",
        title="Read a log of requests",
        text="Requests as JSON lines or CSV, or vLLM's own lines: percentiles of prompts and answers, and the "
        "max_model_len that they need. `counted_by` says whether tokens were counted or estimated.",
        schema={
            "type": "object",
            "properties": {
                "log": _LOG,
                "max_tokens": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "description": "What all clients ask for",
                },
                "columns": {"type": ["string", "null"], "description": "prompt=in,completion=out"},
            },
            "required": ["log"],
            "additionalProperties": False,
        },
        is_body=False,
        body_field="log",
    ),
    "catalogue": Tool(
        operation="catalogue",
        title="Find models, accelerators and releases",
        text="The bundled models, accelerators and engine releases, each with its source. Search by words of a name.",
        schema={
            "type": "object",
            "properties": {
                "kind": {"enum": [*KINDS, None], "description": "Only these"},
                "search": {"type": ["string", "null"], "description": "words of a name, such as `70b llama`"},
            },
            "additionalProperties": False,
        },
        is_body=False,
        most=MOST_BYTES,
    ),
    "fields": Tool(
        operation="fields",
        title="Look up flags",
        text="Fields of `plan` by words of their name or meaning: type, bounds, default, what each is for.",
        schema={
            "type": "object",
            "properties": {
                "search": {"type": ["string", "null"], "description": "such as `expert` or `max_num`"}
            },
            "additionalProperties": False,
        },
        is_body=False,
    ),
}


def tools_server(answered: Answers, base: str | None) -> Server[Any]:
    """A server of the tools, answered by `answered`, for pages at `base`; None where there are no pages."""

    async def listed(_: Any, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(name, tool) for name, tool in TOOLS.items()])

    async def called(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            tool = TOOLS.get(params.name)
            if tool is None:
                raise ScenarioError("unknown-field", field=params.name)
            found = await answered(tool.asked(params.arguments or {}, base))
            return _result(found.body, is_error=found.status != 200)
        except Exception as error:  # the last net: the session goes on
            known = error if isinstance(error, KvPlannerError) else defect(error)
            return _result(problem_bytes(known), is_error=True)

    return Server(
        "kv-planner",
        version=VERSION,
        title="KV Planner",
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


def _described(name: str, tool: Tool) -> types.Tool:
    return types.Tool(
        name=name,
        title=tool.title,
        description=tool.text,
        input_schema=dict(tool.schema),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=True,
            destructive_hint=False,
            idempotent_hint=True,
            # A model that is not bundled is looked up on the Hugging Face Hub.
            open_world_hint=tool.operation == "plan",
        ),
    )


def _result(body: bytes, *, is_error: bool) -> types.CallToolResult:
    """An answer as text and as data, decoded once and not encoded again: that of a sweep has megabytes."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=body.decode())],
        structured_content=msgspec.json.decode(body),
        is_error=is_error,
    )


def serve_stdio() -> None:
    """Answers an agent on standard input and output until it ends them."""
    settings = Settings.of(os.environ)
    pool = Pool(settings)

    async def run() -> None:
        server = tools_server(pool.answered, settings.base)
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())
        await pool.close()

    asyncio.run(run())


async def answer_http(api: Api, client: str, scope: Any, receive: Any, send: Any) -> None:
    """One request to /mcp: streamable HTTP without sessions, so that no task outlives it."""
    server = tools_server(partial(api.answered_tool, client=client), api.settings.base)
    manager = StreamableHTTPSessionManager(
        app=server, json_response=True, stateless=True, max_request_body_size=BODY_BYTES["mcp"]
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)
