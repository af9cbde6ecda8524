"""Hostile inputs in this process: each has an answer with a code, in less than a second of CPU time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcore.base.errors import KvPlannerError
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.planning import plan
from kvcore.wire import link
from kvcore.wire.request import parse_request, scenario_from_request
from tests import hostile_inputs
from tests.cpu import answer_within

CPU_SECONDS = 1.0


def answers(said: Iterator[str]) -> set[str]:
    """Codes and verdicts, up to the error that ends it."""
    codes: set[str] = set()
    try:
        codes.update(said)
    except KvPlannerError as error:
        codes.add(error.code)
    return codes


def of_link(name: str) -> Iterator[str]:
    decoded = link.decode(hostile_inputs.LINKS[name])
    yield from (repair.error.code for repair in decoded.repairs)
    yield from (
        repair.error.code for pin in link.decode_pins(hostile_inputs.LINKS[name]) for repair in pin.repairs
    )
    yield str(plan(decoded.scenario).verdict)


def of_config(name: str) -> Iterator[str]:
    text = {**hostile_inputs.CONFIGS, **hostile_inputs.LONG_CONFIGS}[name]
    card = {"accelerator": "H100-80GB", "tensor_parallel_size": 2}
    request = {**card, "model": "a/b", "config": parse_request(text)}
    yield str(plan(scenario_from_request(request)).verdict)


def of_command(name: str) -> Iterator[str]:
    log = read_log(hostile_inputs.COMMANDS[name])
    yield from (notice.code for notice in log.notices)
    current = scenario_from_request({"model": hostile_inputs.MODEL, "accelerator": "H100-80GB"})
    yield str(plan(scenario_from_log(log, current).scenario).verdict)


CASES = [
    *((of_link, name) for name in hostile_inputs.LINKS),
    *((of_config, name) for name in (*hostile_inputs.CONFIGS, *hostile_inputs.LONG_CONFIGS)),
    *((of_command, name) for name in hostile_inputs.COMMANDS),
]


@pytest.mark.parametrize(("reads", "name"), CASES, ids=[f"{reads.__name__}: {name}" for reads, name in CASES])
def test_has_an_answer_in_less_than_a_second_of_cpu_time(
    reads: Callable[[str], Iterator[str]], name: str
) -> None:
    found = answer_within(CPU_SECONDS, lambda: answers(reads(name)))
    assert found & hostile_inputs.CODES[name]
