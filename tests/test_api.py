"""Each address of the API: its answer, its problems, and what hostile bodies get."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from jsonschema import Draft202012Validator

from kvcore.api.limits import Settings
from kvcore.api.operations import Asked, answered
from kvcore.base.errors import MESSAGES, ScenarioError
from kvcore.contract.result import answer
from tests import openapi_client
from tests.api_server import GENEROUS, GOOD, client_of, post, running_api

ROOT: Final = Path(__file__).resolve().parents[1]
SECRET: Final = "words-of-a-visitor"
PAGES: Final = "https://plan.example.org"
SITE: Final = "https://docs.example.org"
"""A site whose pages may ask."""


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api") / "server.log"


@pytest.fixture(scope="module")
def client(log_file: Path) -> Iterator[httpx2.Client]:
    environment = {
        **GENEROUS,
        "KVPLANNER_URL": PAGES,
        "KVPLANNER_API_ORIGINS": f"{SITE}, http://localhost:3000/",
    }
    with running_api(log_file, environment) as address, client_of(address) as opened:
        yield opened


@pytest.fixture(scope="module")
def document(client: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/openapi.json").json()
    return found


def check(document: dict[str, Any], name: str, value: object) -> None:
    """Checks a value against its description."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    Draft202012Validator(schema).validate(value)


def problem_of(document: dict[str, Any], response: httpx2.Response) -> dict[str, Any]:
    """The problem of a response that is one, whole and translatable."""
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    check(document, "Problem", found)
    assert found["status"] == response.status_code
    assert found["code"] in MESSAGES
    return found


def test_a_plan_is_the_command_lines_with_sources_and_the_page(
    client: httpx2.Client, document: dict[str, Any]
) -> None:
    found = post(client, "/api/plan", {**GOOD, "id": "mine"}).json()
    check(document, "Plan", found)
    sources, page = found.pop("sources"), found.pop("page")
    assert found == json.loads(json.dumps(answer(json.dumps({**GOOD, "id": "mine"}))))
    assert sources["weights"]["grade"] == "derived"
    assert sources["activations"]["sources"]
    assert page.startswith(f"{PAGES}/?v=1&model=Qwen/Qwen3-32B&accelerator=H100-80GB")


def test_a_plan_that_does_not_fit_is_an_answer(client: httpx2.Client, document: dict[str, Any]) -> None:
    response = post(client, "/api/plan", {**GOOD, "accelerator": "RTX-4090-24GB"})
    assert (response.status_code, response.json()["verdict"]) == (200, "weights-do-not-fit")
    check(document, "Plan", response.json())


def test_a_refusal_of_the_engine_is_a_problem(client: httpx2.Client, document: dict[str, Any]) -> None:
    response = post(client, "/api/plan", {**GOOD, "id": 7, "tensor_parallel_size": 3})
    found = problem_of(document, response)
    assert (found["code"], found["field"], found["id"]) == ("heads-not-divisible", "tensor_parallel_size", 7)
    assert found["next_step"] == "choose a tensor parallel size that divides the attention heads"
    assert response.status_code == 422


HOSTILE: Final = {
    "not JSON": (b"{", 400, "invalid-json"),
    "nothing": (b"", 400, "invalid-json"),
    "an array": (b"[]", 400, "invalid-json"),
    "not UTF-8": (b"\xff\xfe{}", 400, "not-utf8"),
    "100,000 brackets": (b"[" * 100_000, 422, "input-too-deep"),
    "100,000 objects": (b'{"a":' * 100_000, 422, "input-too-deep"),
    "400 digits": (b'{"model": "m", "max_num_seqs": ' + b"9" * 400 + b"}", 422, "number-too-long"),
    "2^63": ({**GOOD, "max_num_seqs": 2**63}, 422, "invalid-value"),
    "-2^63": ({**GOOD, "max_model_len": -(2**63)}, 422, "invalid-value"),
    "NaN": (b'{"model": "Qwen/Qwen3-32B", "gpu_memory_utilization": NaN}', 422, "invalid-value"),
    "infinity as an id": (b'{"id": Infinity, "model": "Qwen/Qwen3-32B"}', 422, "invalid-value"),
    "a text for a number": ({**GOOD, "max_num_seqs": "many"}, 422, "invalid-value"),
    "a list for a model": ({**GOOD, "model": ["a"]}, 422, "invalid-value"),
    "half of a surrogate pair": (b'{"model": "\\ud800", "accelerator": "H100-80GB"}', 422, "invalid-value"),
    "half of one as an id": (b'{"id": "\\udfff", "model": "m"}', 422, "invalid-value"),
    "a field that is none": ({**GOOD, "max_seqs": 1}, 422, "unknown-field"),
    "no model": ({"accelerator": "H100-80GB"}, 422, "missing-field"),
    "9 MiB": (b'{"model": "' + b"x" * (9 << 20) + b'"}', 413, "body-too-large"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_a_problem_and_the_server_goes_on(
    name: str, client: httpx2.Client, document: dict[str, Any]
) -> None:
    body, status, code = HOSTILE[name]
    found = problem_of(document, post(client, "/api/plan", body))
    assert (found["status"], found["code"]) == (status, code)
    assert post(client, "/api/plan", GOOD).status_code == 200


def test_a_body_of_undeclared_length_is_bounded_too(client: httpx2.Client, document: dict[str, Any]) -> None:
    parts = (b"x" * (1 << 20) for _ in range(10))
    response = client.post("/api/plan", content=parts, headers={"Content-Type": "application/json"})
    assert problem_of(document, response)["code"] == "body-too-large"


def test_a_batch_answers_in_order_as_it_was_asked(client: httpx2.Client, document: dict[str, Any]) -> None:
    rows = [{**GOOD, "id": 1}, {"id": 2}, {**GOOD, "id": 3, "max_num_seqs": 10**50}, {**GOOD, "id": 4}]
    array = post(client, "/api/plan:batch", rows).json()
    assert [(row["id"], row["status"]) for row in array] == [
        (1, "ok"), (2, "error"), (None, "error"), (4, "ok"),
    ]  # fmt: skip
    for row in array:
        check(document, "Result", row)
    lines = "\n".join(json.dumps(row) for row in rows)
    sent = client.post("/api/plan:batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert [json.loads(line) for line in sent.text.splitlines()] == array


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([GOOD] * 257, "batch-too-long"),
        ({}, "invalid-json"),
        (b"[" * 70 + b"]" * 70, "input-too-deep"),
        (b"[1", "invalid-json"),
    ],
)
def test_a_batch_that_cannot_be_read(
    body: Any, code: str, client: httpx2.Client, document: dict[str, Any]
) -> None:
    assert problem_of(document, post(client, "/api/plan:batch", body))["code"] == code


def test_a_sweep_is_the_command_lines(client: httpx2.Client, document: dict[str, Any]) -> None:
    asked = {"models": ["Qwen/Qwen3-32B"], "accelerators": ["H100-80GB", "L40S-48GB"], "max_model_len": 8192}
    found = post(client, "/api/sweep", asked).json()
    check(document, "Sweep", found)
    verdicts = {
        (cell["accelerator"], cell["tensor_parallel_size"]): cell["verdict"] for cell in found["cells"]
    }
    assert len(verdicts) == 8
    assert verdicts["L40S-48GB", 1] == "weights-do-not-fit"
    assert verdicts["L40S-48GB", 2] == "fits"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "sweep-too-large", ""),
        ({"models": "Qwen/Qwen3-32B"}, "invalid-value", "models"),
        ({"models": [1]}, "invalid-value", "models"),
        ({"models": ["Qwen/Qwen3-32B"], "tensor_parallel_sizes": [0]}, "invalid-value", "tensor_parallel_sizes"),
        ({"models": ["Qwen/Qwen3-32B"], "tensor_parallel_sizes": [True]}, "invalid-value", "tensor_parallel_sizes"),
        ({"models": ["no such/model"]}, "unknown-model", "model"),
        ({"models": ["Qwen/Qwen3-32B"], "config": {}}, "unknown-field", "config"),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_made(
    body: Any, code: str, field: str, client: httpx2.Client, document: dict[str, Any]
) -> None:
    found = problem_of(document, post(client, "/api/sweep", body))
    assert (found["code"], found["field"]) == (code, field)


LINE: Final = "INFO 07-01 [gpu_worker.py:298] Available KV cache memory: 52.80 GiB"


def test_a_log_as_text_and_as_json(client: httpx2.Client, document: dict[str, Any]) -> None:
    sent = client.post("/api/log", content=LINE, headers={"Content-Type": "text/plain"}).json()
    check(document, "LogReport", sent)
    assert sent["measured"] == {"available_kv_gib": 52.8}
    assert post(client, "/api/log", {"log": LINE}).json() == sent
    named = "non-default args: {'model': 'Qwen/Qwen3-8B'}\n" + LINE
    found = post(client, "/api/log", {"log": named, "accelerator": "H100-80GB"}).json()
    assert found["request"]["accelerator"] == "H100-80GB"
    assert found["comparison"]["parts"]
    assert (
        problem_of(document, post(client, "/api/log", {"log": LINE, "accelerator": "H99"}))["field"]
        == "accelerator"
    )
    assert problem_of(document, post(client, "/api/log", {"log": 1}))["field"] == "log"
    assert problem_of(document, post(client, "/api/log", {"log": LINE, "x": 1}))["code"] == "unknown-field"
    assert problem_of(document, post(client, "/api/log", {}))["code"] == "missing-field"


def test_a_workload_plain_and_packed(client: httpx2.Client, document: dict[str, Any]) -> None:
    lines = b"\n".join(b'{"prompt_tokens": %d, "completion_tokens": 80}' % tokens for tokens in (900, 1000))
    plain = client.post("/api/workload?max_tokens=512", content=lines)
    check(document, "WorkloadReport", plain.json())
    assert (plain.json()["requests"], plain.json()["recommended_max_model_len"]) == (2, 1512)
    packed = client.post("/api/workload?max_tokens=512", content=gzip.compress(lines))
    assert packed.json() == plain.json()
    named = client.post("/api/workload?columns=prompt=a,completion=b", content=b"a,b\n5,6\n")
    assert named.json()["prompt"]["max"] == 5


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("", b"", "request-log-empty"),
        ("", b"\x00\x01", "request-log-not-text"),
        ("", gzip.compress((b"x" * 79 + b"\n") * 800_000, mtime=0), "request-log-too-large"),
        ("?max_tokens=0", b'{"prompt_tokens": 1}', "invalid-value"),
        ("?max_tokens=" + "9" * 400, b'{"prompt_tokens": 1}', "invalid-value"),
        ("?columns=size=a", b'{"prompt_tokens": 1}', "unknown-column-field"),
        ("?columns=prompt", b'{"prompt_tokens": 1}', "invalid-value"),
        ("?columns=prompt=", b'{"prompt_tokens": 1}', "invalid-value"),
        ("?columns==a", b'{"prompt_tokens": 1}', "invalid-value"),
        ("?columns=prompt=a,", b'{"a": 1}', "invalid-value"),
        ("?columns=prompt=a,prompt=b", b'{"a": 1, "b": 2}', "named-twice"),
        ("?columns=prompt=nope", b'{"prompt_tokens": 1}', "unknown-column"),
        ("?columns=prompt=a=b", b'{"prompt_tokens": 1}', "unknown-column"),
        ("?columns=prompt=nope", b"prompt_tokens,completion_tokens\n5,6\n", "unknown-column"),
        ("?columns=prompt=a,completion=nope", b"a,b\n5,6\n", "unknown-column"),
        (
            "?columns=prompt=nope",
            b'{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}',
            "unknown-column",
        ),
        ("?max_token=5", b'{"prompt_tokens": 1}', "unknown-field"),
        ("?base=x", b'{"prompt_tokens": 1}', "unknown-field"),
        ("?max_tokens=5&max_tokens=7", b'{"prompt_tokens": 1}', "named-twice"),
    ],
)
def test_a_workload_that_cannot_be_read(
    query: str, body: bytes, code: str, client: httpx2.Client, document: dict[str, Any]
) -> None:
    assert problem_of(document, client.post(f"/api/workload{query}", content=body))["code"] == code


@pytest.mark.parametrize("body", [
    b'{"usage": {"My Prompt": 5, "completion_tokens": 6}}',
    b'{"other": 1}\n{"MY_PROMPT": 5, "completion_tokens": 6}',
    b"time;My-Prompt;completion_tokens\n1;5;6\n",
    b'{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}], "my prompt": 5}',
    gzip.compress(b'{"my_prompt": 5}', mtime=0),
])  # fmt: skip
def test_a_column_that_some_record_has_is_named_as_it_is_found(client: httpx2.Client, body: bytes) -> None:
    answer = client.post("/api/workload", content=body, params={"columns": "prompt= My Prompt"})
    assert answer.json()["requests"] == 1


@pytest.mark.parametrize("path", ["plan", "plan:batch", "sweep", "log", "catalogue"])
def test_an_option_that_an_address_has_not_is_refused(
    path: str, client: httpx2.Client, document: dict[str, Any]
) -> None:
    method = client.get if path == "catalogue" else partial(post, client, body={})
    found = problem_of(document, method(f"/api/{path}?max_tokens=5"))
    assert (found["code"], found["field"]) == ("unknown-field", "max_tokens")


def test_the_catalogue_lists_rows_as_described(client: httpx2.Client, document: dict[str, Any]) -> None:
    found = client.get("/api/catalogue").json()
    check(document, "Catalogue", found)
    assert "H100-80GB" in {row["id"] for row in found["accelerators"]}
    searched = client.get("/api/catalogue", params={"kind": "models", "search": "70b llama 3.3"}).json()
    assert searched["models"][0]["id"] == "meta-llama/Llama-3.3-70B-Instruct"
    assert "accelerators" not in searched
    assert problem_of(document, client.get("/api/catalogue?kind=x"))["field"] == "kind"
    twice = client.get("/api/catalogue?kind=models&kind=engines")
    assert problem_of(document, twice)["code"] == "named-twice"


def test_other_addresses_methods_types_and_origins(client: httpx2.Client, document: dict[str, Any]) -> None:
    assert problem_of(document, client.get("/api/nothing"))["status"] == 404
    refused = client.delete("/api/plan")
    assert problem_of(document, refused)["status"] == 405
    assert refused.headers["allow"] == "POST"
    form = client.post("/api/plan", data={"model": "m"})
    assert problem_of(document, form)["status"] == 415
    foreign = client.post("/api/plan", json=GOOD, headers={"Origin": "https://other.example"})
    assert problem_of(document, foreign)["code"] == "foreign-origin"
    own = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/api/plan", json=GOOD, headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/api/plan", "/mcp"])
@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "x"])
def test_an_origin_that_is_no_address_is_a_foreign_one(
    path: str, origin: str, client: httpx2.Client, document: dict[str, Any]
) -> None:
    refused = client.post(path, json=GOOD, headers={"Origin": origin})
    assert problem_of(document, refused)["code"] == "foreign-origin"


def test_nothing_that_was_sent_is_in_the_servers_log(client: httpx2.Client, log_file: Path) -> None:
    for body in ({"model": SECRET}, {**GOOD, "config": {SECRET: 1}}, b'{"' + SECRET.encode()):
        assert post(client, "/api/plan", body).status_code >= 400
    client.get(f"/api/{SECRET}?{SECRET}")
    assert SECRET not in log_file.read_text("utf-8")


def test_the_description_is_openapi_and_has_every_address(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert sorted(document["paths"]) == [
        f"/api/{name}"
        for name in (
            "catalogue", "check", "healthz", "log", "openapi.json", "plan", "plan:batch", "sweep", "workload",
        )
    ]  # fmt: skip
    published = json.loads((ROOT / "docs" / "contract.schema.json").read_text("utf-8"))
    assert published.pop("$schema").endswith("2020-12/schema")
    assert document["components"]["schemas"]["Request"] == published


VOCABULARY: Final = frozenset(
    "$ref additionalProperties allOf anyOf components const content default description discriminator "
    "enum example format get headers identifier in info items license mapping maxItems maxLength "
    "maxProperties maximum minItems minLength minProperties minimum name not oneOf openapi operationId "
    "parameters paths pattern post properties propertyName propertyNames requestBody required responses "
    "schema schemas servers summary title type url version".split()
)
NAMED_FREELY: Final = (
    "paths",
    "content",
    "responses",
    "schemas",
    "headers",
    "properties",
    "mapping",
    "example",
)


def test_the_description_has_no_stray_key(document: dict[str, Any]) -> None:
    """A comma in a text makes a key of what is behind it, and no reader of OpenAPI says so."""

    def stray(part: Any, under: str = "") -> Iterator[str]:
        if isinstance(part, list):
            for one in part:
                yield from stray(one)
        if isinstance(part, dict) and under not in ("mapping", "example"):
            for key, value in part.items():
                if under not in NAMED_FREELY and key not in VOCABULARY:
                    yield key
                yield from stray(value, "" if under in NAMED_FREELY else key)

    assert list(stray(document)) == []


def closed(schema: Any) -> Any:
    """A schema that takes no property beyond those it names."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and "allOf" not in found:
        found.setdefault("additionalProperties", False)
    return found


ANSWERS: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("PlanResult", "plan", GOOD),
    ("PlanResult", "plan", {**GOOD, "accelerator": "RTX-4090-24GB", "id": 5}),
    ("PlanResult", "plan", {**GOOD, "wanted": 400, "kv_offloading_size": 40, "pipeline_parallel_size": 2}),
    ("PlanResult", "plan", {**GOOD, "measured": {"available_kv_gib": 10.0}}),
    ("PlanResult", "plan", {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "other_engines": "30 GiB"}),
    ("PlanResult", "plan", {"model": "Qwen/Qwen3-8B"}),
    ("Sweep", "sweep", {"models": ["Qwen/Qwen3-32B"], "accelerators": ["H100-80GB", "L4-24GB"]}),
    (
        "CheckReport",
        "check",
        {"files": {"a.sh": "vllm serve Qwen/Qwen3-8B"}, "accelerator": "H100-80GB", "target": 4},
    ),
    ("LogReport", "log", {"log": LINE}),
]


@pytest.mark.parametrize(("name", "path", "asked"), ANSWERS)
def test_answers_have_no_key_that_is_not_described(
    name: str, path: str, asked: dict[str, Any], client: httpx2.Client, document: dict[str, Any]
) -> None:
    response = post(client, f"/api/{path}", asked)
    assert response.status_code == 200, response.text
    found = response.json()
    if path == "plan":
        check(document, "Plan", found)
        del found["sources"], found["page"]
    described = {**document, "components": {"schemas": closed(document["components"]["schemas"])}}
    described["components"]["schemas"]["Workload"].pop(
        "additionalProperties"
    )  # docs/check-files.md has them all
    check(described, name, found)


def test_a_client_made_of_the_description_asks_and_reads(
    document: dict[str, Any], client: httpx2.Client, tmp_path: Path
) -> None:
    """Types and methods are made of the document alone, pass a strict type checker, and name what answers have."""
    (tmp_path / "planner_client.py").write_text(openapi_client.module(document), "utf-8")
    program = f"""
from planner_client import ApiError, Client

client = Client("{client.base_url}")
found = client.plan({{"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192}})
print(found["verdict"], found["kv"]["tokens"], found["per_rank_gib"]["weights"], found["page"])
try:
    client.plan({{"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 3}})
except ApiError as error:
    print(error.problem["code"], error.problem["field"])
for row in client.planBatch([{{"model": "Qwen/Qwen3-8B"}}, {{"model": "no/such"}}]):
    print(row["verdict"] if row["status"] == "ok" else row["error"]["code"])
swept = client.sweep({{"models": ["Qwen/Qwen3-32B"], "accelerators": ["H100-80GB"]}})
print([cell["status"] for cell in swept["cells"]])
print(client.catalogue(kind="accelerators", search="h100 80gb")["accelerators"][0]["id"])
print(client.readLog("{LINE}")["measured"])
print(client.workload('{{"prompt_tokens": 900, "completion_tokens": 80}}', max_tokens=512)["recommended_max_model_len"])
files = {{"run.sh": "vllm serve Qwen/Qwen3-8B --max-model-len 8192"}}
print(client.check({{"files": files, "accelerator": "L4-24GB"}})["workloads"][0]["verdict"], client.health()["status"])
"""
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "wrong.py").write_text(program + "found['kv']['tokenz']\nclient.plan({'modell': 'a'})\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache"),
         "--no-error-summary", "program.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    last = program.count("\n") + 1
    assert {line.partition(": error:")[0] for line in errors} == {
        f"wrong.py:{last}",
        f"wrong.py:{last + 1}",
    }, errors
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
    )
    assert ran.returncode == 0, ran.stderr
    planned = answer(json.dumps({**GOOD, "tensor_parallel_size": 1}))
    first, refused, *rest = ran.stdout.splitlines()
    assert first.split()[:2] == [planned["verdict"], str(planned["kv"]["tokens"])]
    assert first.split()[3].startswith(f"{PAGES}/?v=1")
    assert refused == "heads-not-divisible tensor_parallel_size"
    assert rest == [
        "fits", "hub-offline", str(["ok"] * 4), "H100-80GB", str({"available_kv_gib": 52.8}), "1412", "starts ok",
    ]  # fmt: skip


# -- what browsers, caches and other sites ask


@pytest.mark.parametrize("path", ["/api/catalogue?kind=models", "/api/openapi.json"])
def test_what_a_client_has_is_not_sent_again(path: str, client: httpx2.Client) -> None:
    first = client.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get("/api/catalogue?kind=engines").headers["etag"] != tag


def test_long_answers_are_packed_for_who_takes_that(client: httpx2.Client) -> None:
    for asked in (
        partial(client.get, "/api/catalogue?kind=models"),
        partial(client.post, "/api/sweep", json={"models": ["Qwen/Qwen3-32B"]}),
    ):
        plain, packed = (asked(headers={"Accept-Encoding": how}) for how in ("identity", "br;q=1, gzip"))
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.json() == plain.json()
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 4
        assert "Accept-Encoding" in packed.headers["vary"]
    assert "content-encoding" not in client.get("/api/healthz", headers={"Accept-Encoding": "gzip"}).headers
    refused = client.get("/api/catalogue", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_pages_of_named_sites_may_ask_and_no_others(client: httpx2.Client, document: dict[str, Any]) -> None:
    for site in (SITE, "http://localhost:3000"):
        found = client.post("/api/plan", json=GOOD, headers={"Origin": site})
        assert found.json()["verdict"] == "fits"
        assert found.headers["access-control-allow-origin"] == site
        assert "Origin" in found.headers["vary"]
        problem = client.post("/api/plan", json={}, headers={"Origin": site})
        assert problem.headers["access-control-allow-origin"] == site
        before = {"Origin": site, "Access-Control-Request-Method": "POST"}
        said = client.options("/api/plan", headers=before)
        assert said.status_code == 204
        assert said.headers["access-control-allow-headers"] == "Content-Type"
        assert said.headers["access-control-allow-methods"] == "GET, POST"
    for site in ("https://docs.example.org.evil.example", "http://docs.example.org", "null"):
        refused = client.post("/api/plan", json=GOOD, headers={"Origin": site})
        assert problem_of(document, refused)["code"] == "foreign-origin"
        before = {"Origin": site, "Access-Control-Request-Method": "POST"}
        for response in (refused, client.options("/api/plan", headers=before)):
            assert "access-control-allow-origin" not in response.headers
    assert "access-control-allow-origin" not in post(client, "/api/plan", GOOD).headers


@pytest.mark.parametrize("origins", ["*", "https://a.example/path", "example.org", "https://a.example;"])
def test_sites_are_named_one_by_one(origins: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        Settings.of({"KVPLANNER_API_ORIGINS": origins})
    assert (raised.value.code, raised.value.field) == ("invalid-value", "KVPLANNER_API_ORIGINS")


def test_links_are_given_where_there_are_pages() -> None:
    assert Settings.of({}).base is None
    assert Settings.of({}, has_pages=True).base == ""
    asked = Asked(operation="plan", body=json.dumps(GOOD).encode())
    assert "page" not in json.loads(answered(asked).body)


def test_files_are_checked_by_their_text(client: httpx2.Client, document: dict[str, Any]) -> None:
    compose = "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model ${MODEL} -tp 1\n"
    asked = {"files": {"compose.yaml": compose, ".env": "MODEL=Qwen/Qwen3-32B"}, "accelerator": "L4-24GB"}
    found = post(client, "/api/check", asked).json()
    (one,) = found["workloads"]
    assert (one["model"], one["engine_version"], one["verdict"]) == (
        "Qwen/Qwen3-32B",
        "0.11.0",
        "does-not-start",
    )
    assert found["exit_status"] == 1
    assert problem_of(document, post(client, "/api/check", {"files": {"a": 1}}))["field"] == "files"
    assert problem_of(document, post(client, "/api/check", {**asked, "tight": "no"}))["field"] == "tight"
    assert (
        problem_of(document, post(client, "/api/check", {**asked, "card": "no"}))["code"] == "unknown-field"
    )
