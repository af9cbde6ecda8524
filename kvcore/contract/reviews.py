"""Checked files in the formats of reviews: SARIF, annotations of GitHub's workflows, JUnit."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from msgspec import Struct

from kvcore.base.errors import shorten
from kvcore.contract.deployed import Reported, check_lines
from kvcore.preflight.outcome import Checks, Outcome
from kvcore.preflight.patches import Patch, own_setting
from kvcore.version import VERSION

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
TOOL: Final = "kvcore check"
STDIN: Final = "stdin"
LONGEST: Final = 1000
MARKER: Final = "<!-- kvcore check -->"
"""The first line of a comment, so that people and programs know it."""
ERROR, WARNING = "error", "warning"


class Finding(Struct, frozen=True, kw_only=True):
    """One remark on a line of a file."""

    code: str
    level: str
    file: str
    line: int
    title: str
    text: str
    patch: Patch | None = None
    engine: str = "vllm"
    """Of the workload, by whose names of settings a patch is told."""


def findings(found: Checks, rows: Sequence[Reported]) -> Iterator[Finding]:
    """Everything that a review is to show; a workload that simply starts has none.

    What cannot be known is an error of its own: it never passes for a start.
    """
    for one in rows:
        own, outcome = one.checked.workload, one.checked.outcome
        about = shorten(own.name or own.model or "?", 80)
        file, line = own.place.file, max(1, own.place.line)
        link = f" {one.link}" if one.link is not None else ""
        for at, said in enumerate(one.checked.reasons if outcome is not Outcome.STARTS else ()):
            changes = _changes(one.patch, own.engine) if not at else ""
            yield Finding(
                code=said.code, level=ERROR, title=f"{about}: {outcome.value}",
                text=f"{said.message.removesuffix('.')}; {said.next_step}{changes}{link}",
                engine=own.engine, patch=one.patch if not at else None, file=file, line=line,
            )  # fmt: skip
        for said in one.checked.warnings:
            text = f"{said.message}; {said.next_step}"
            yield Finding(code=said.code, level=WARNING, title=about, text=text, file=file, line=line)
    for problem in found.read.problems:
        text = f"{problem.error.message}; {problem.error.next_step}"
        yield Finding(
            code=problem.error.code, level=ERROR, file=problem.file, line=max(1, problem.line),
            title="cannot be read", text=text,
        )  # fmt: skip


def _changes(patch: Patch | None, engine: str) -> str:
    if patch is None:
        return ""
    own = (own_setting(engine, name, after) or (name, after) for name, _, after in patch.changes)
    said = ", ".join(f"{name} = {shorten(after, 60)}" for name, after in own)
    return f". It starts with {said}"


# -- SARIF


def sarif(found: Checks, rows: Sequence[Reported]) -> str:
    """All findings as one run of SARIF 2.1.0, patches as its fixes.

    Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
    """
    held = list(findings(found, rows))
    codes = sorted({one.code for one in held})
    rules = [{"id": code, "shortDescription": {"text": code.replace("-", " ")}} for code in codes]
    texts = {source.name: source.content for source in found.sources}
    run = {
        "tool": {"driver": {"name": TOOL, "version": VERSION, "rules": rules}},
        "invocations": [{"executionSuccessful": True, "exitCode": found.status}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, codes, texts) for one in held],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False)


def _result(one: Finding, codes: Sequence[str], texts: dict[str, bytes | str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": one.code,
        "ruleIndex": codes.index(one.code),
        "level": one.level,
        "message": {"text": shorten(f"{one.title}: {one.text}", LONGEST)},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": _uri(one.file)}, "region": {"startLine": one.line}}}
        ],
    }  # fmt: skip
    if one.patch is not None:
        before = texts[one.patch.file]
        text = before if isinstance(before, str) else before.decode("utf-8", "replace")
        change = {
            "artifactLocation": {"uri": _uri(one.patch.file)},
            "replacements": list(_replacements(text, one.patch.text)),
        }
        result["fixes"] = [
            {"description": {"text": _changes(one.patch, one.engine)[2:] + "."}, "artifactChanges": [change]}
        ]
    return result


def _replacements(before: str, after: str) -> Iterator[dict[str, Any]]:
    """Whole lines that are replaced; a region of no characters is an insertion."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for kind, begin, end, first, last in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            region = {"startLine": begin + 1, "startColumn": 1, "endLine": end + 1, "endColumn": 1}
            yield {"deletedRegion": region, "insertedContent": {"text": "".join(new[first:last])}}


def _uri(file: str) -> str:
    """A file as a relative address, or one of this machine where its path is absolute."""
    path = quote(STDIN if file == "-" else file.replace("\\", "/").removeprefix("./"), safe="/")
    return f"file://{path}" if path.startswith("/") else path


# -- annotations of GitHub


def github_lines(found: Checks, rows: Sequence[Reported]) -> Iterator[str]:
    """Workflow commands that put each finding on its line.

    Source: docs.github.com, Workflow commands for GitHub Actions; actions/toolkit packages/core/src/command.ts.

    Example:
        >>> from kvcore.contract.deployed import check_files, reported
        >>> from kvcore.manifests.files import Source
        >>> found = check_files([Source("a,b.sh", "vllm serve $MODEL -tp 2")], "H100-80GB")
        >>> next(github_lines(found, reported(found)))[:47]
        '::error file=a%2Cb.sh,line=1,title=?%3A cannot-'
    """
    for one in findings(found, rows):
        file = _property(STDIN if one.file == "-" else one.file)
        head = f"::{one.level} file={file},line={one.line},title={_property(one.title)}"
        yield f"{head}::{_data(shorten(one.text, LONGEST))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(shorten(text, LONGEST)).replace(":", "%3A").replace(",", "%2C")


# -- a comment


def comment(found: Checks, rows: Sequence[Reported]) -> str:
    """The verdicts as a comment: the table and patches as code, which no name in a file ends, and links below.

    A stranger's text stands only inside of fences longer than any run of backticks in it.
    """
    lines = [line for line in check_lines(found, rows) if not line.startswith("  http")]
    parts = [MARKER, "", *_fenced(lines, "text")]
    links = [(one.checked.workload.place.line, one.link) for one in rows if one.link is not None]
    if links:
        parts += ["", "Plans:", "", *(f"- workload {at}: <{link}>" for at, (_, link) in enumerate(links, 1))]
    return "\n".join(parts)


def _fenced(lines: Sequence[str], language: str) -> list[str]:
    runs = re.findall(r"`+", "\n".join(lines))
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    return [f"{fence}{language}", *lines, fence]


# -- JUnit


def junit(found: Checks, rows: Sequence[Reported]) -> str:
    """A test case for each workload and for each file that cannot be read; what cannot be known is an error.

    Source: the schema of Jenkins's JUnit plug-in (jenkinsci/xunit-plugin, junit-10.xsd).
    """
    cases: list[str] = []
    failures = errors = 0
    for one in rows:
        own, outcome = one.checked.workload, one.checked.outcome
        name = own.name or own.model or f"line {own.place.line}"
        said = "; ".join(reason.message for reason in one.checked.reasons) or outcome.value
        inner = ""
        if outcome in (Outcome.DOES_NOT_START, Outcome.FALLS_SHORT):
            failures += 1
            inner = f"<failure type={_attribute(outcome.value)} message={_attribute(said)}/>"
        elif outcome is Outcome.CANNOT_BE_KNOWN:
            errors += 1
            inner = f"<error type={_attribute(outcome.value)} message={_attribute(said)}/>"
        cases.append(_case(own.place.file, f"{name} (line {own.place.line})", inner))
    for problem in found.read.problems:
        errors += 1
        inner = f'<error type="cannot-be-read" message={_attribute(problem.error.message)}/>'
        cases.append(_case(problem.file, f"line {problem.line}", inner))
    totals = f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="0"'
    suite = f'<testsuite name="{TOOL}" {totals}>{"".join(cases)}</testsuite>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {totals}>{suite}</testsuites>'


def _case(file: str, name: str, inner: str) -> str:
    about = f"classname={_attribute(STDIN if file == '-' else file)} name={_attribute(name)}"
    return f"<testcase {about}>{inner}</testcase>" if inner else f"<testcase {about}/>"


def _attribute(text: str) -> str:
    return quoteattr(shorten(text, LONGEST))
