"""Which part of which prompt breaks the prefix cache: found in made-up logs, and no text of them kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcore import cli
from kvcore.workload.logs import read_request_log
from kvcore.workload.prefixes import MAX_TEMPLATES, PrefixCounter, PrefixReport, prefix_lines, prefix_report
from kvcore.workload.requests import Reading

RULES = "".join(f"Rule {at}: answer what was asked, SENTINEL-{at}, and nothing else.\n" for at in range(20))
OTHER = "".join(
    f"Step {at}: translate the next paragraph, and keep its names as they are.\n" for at in range(20)
)


def found_in(records: list[dict[str, Any]]) -> PrefixReport:
    counter = PrefixCounter()
    read_request_log((json.dumps(one).encode() for one in records), reading=Reading(prefixes=counter))
    return counter.report()


def asked(system: str, question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"messages": messages, "usage": {"prompt_tokens": 400, "completion_tokens": 9}} | more


def test_a_time_at_the_top_of_a_system_prompt() -> None:
    """Two templates, one of them with the time in its first line: that line alone is named."""
    records = []
    for at in range(30):
        records.append(asked(f"Now it is 10:{at:02}\n{RULES}", f"What is {at} plus {at}?"))
        records.append(asked(OTHER, f"Text number {at} of a book"))
    report = found_in(records)
    (one,) = report.breaks
    assert (one.part, one.line, one.times, one.requests) == ("system message 1", 1, 29, 30)
    assert one.tokens_before == 0
    # All rules but the question: nearly the whole prompt, of all but the first request of one of two templates.
    assert 0.4 < report.lost_tokens / report.prompt_tokens < 0.5
    assert "system message 1, line 1" in "\n".join(prefix_lines(report))


def test_the_time_at_the_end_costs_nothing() -> None:
    assert not found_in([asked(RULES, f"It is 10:{at:02}. What is {at}?") for at in range(30)]).breaks


def test_tools_in_another_order() -> None:
    tools = [{"name": f"tool_{at}", "description": "Does a thing. Takes a number.\n"} for at in range(6)]
    records = [asked(RULES, "go", tools=tools[at % 2 :] + tools[: at % 2]) for at in range(20)]
    assert found_in(records).breaks[0].part == "tools"


def test_a_conversation_that_goes_on_breaks_nothing() -> None:
    messages: list[dict[str, str]] = [{"role": "system", "content": RULES}]
    records = []
    for at in range(10):
        messages = [*messages, {"role": "user", "content": f"Question {at}, if you please?"}]
        records.append({"messages": messages, "usage": {"prompt_tokens": 400 + at, "completion_tokens": 9}})
        messages = [*messages, {"role": "assistant", "content": f"This is answer {at} to it."}]
    assert not found_in(records).breaks


def test_plain_prompts_are_read_too() -> None:
    report = found_in([{"prompt": f"id={at}\n{RULES}", "max_tokens": 5} for at in range(10)])
    assert (report.breaks[0].part, report.breaks[0].line) == ("prompt", 1)


def test_many_different_prompts_take_bounded_memory() -> None:
    counter = PrefixCounter()
    for at in range(3 * MAX_TEMPLATES):
        counter.add([{"prompt": f"A question that nobody else ever asks, number {at * 7919}"}], 20)
    assert len(counter._templates) <= MAX_TEMPLATES
    assert not counter.report().breaks


def test_the_command_prints_it_and_keeps_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text("\n".join(json.dumps(asked(f"10:{at:02}\n{RULES}", "x")) for at in range(20)))
    assert cli.main(["workload", str(log), "--prefixes", "--json"]) == 0
    printed = capsys.readouterr().out
    report = json.loads(printed)["prefixes"]
    assert (report["requests"], report["breaks"][0]["line"], report["breaks"][0]["share_of_lost"]) == (
        20,
        1,
        1.0,
    )
    assert "SENTINEL" not in printed
    assert cli.main(["workload", str(log), "--prefixes"]) == 0
    assert "lost as hits" in capsys.readouterr().out
    assert prefix_report(PrefixCounter().report())["lost_share"] is None
