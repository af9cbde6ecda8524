"""The load test: its flags exist, it is as large as asked, and nothing breaks out of it."""

from __future__ import annotations

import shlex

import pytest

from kvcore.deploy.load_test import load_test
from kvcore.deploy.monitoring import Load
from kvcore.engine.vllm.metrics import benchmark_program
from tests import present_plans

LOAD = Load(requests=7, prompt_tokens=1000, answer_tokens=200)


def options(command: str) -> dict[str, str]:
    words = shlex.split(command.replace(" \\\n", " "))
    found, name = {}, ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            found[name] = ""
        elif name:
            found[name] = word
    return found


@pytest.mark.parametrize("version", ["0.6.6", "0.8.5", "0.11.0", "0.19.0", "0.28.0", "0.32.0", "0.33.0"])
def test_every_flag_is_one_of_the_generator(version: str) -> None:
    plan = present_plans.request(engine_version=version)
    command = load_test(plan, LOAD).command
    program = benchmark_program(plan.resolved.version)
    assert shlex.split(command)[: len(program.words)] == list(program.words)
    assert set(options(command)) <= program.flags


def test_half_more_than_the_target_is_in_flight() -> None:
    test = load_test(present_plans.fits(), LOAD)
    assert test.requests_at_once == 11  # 10.5 rounded up
    given = options(test.command)
    assert given["max-concurrency"] == "11"
    assert (given["random-input-len"], given["random-output-len"]) == ("1000", "200")


def test_even_the_fastest_engine_takes_five_minutes() -> None:
    plan = present_plans.fits()
    test = load_test(plan, LOAD)
    # Reading 59.6 GiB of weights and 11 × 1,000 tokens of 256 KiB at 3,350 GB/s.
    seconds_per_token = (63_968_421_888 + 11 * 1000 * 262_144) / 3350e9
    assert test.num_prompts / 11 * 200 * seconds_per_token == pytest.approx(300, rel=0.01)
    assert test.num_prompts / 11 * 200 * seconds_per_token >= 300
    assert test.is_sized


def test_a_card_of_unknown_bandwidth() -> None:
    plan = present_plans.request(accelerator={"memory_gib": 80, "vendor": "nvidia", "name": "?"})
    test = load_test(plan, LOAD)
    assert not test.is_sized
    assert test.num_prompts == 110


def test_a_hostile_model_name_stays_one_word() -> None:
    name = "a'; rm -rf / #\n$(x) `y`"
    command = load_test(present_plans.renamed(present_plans.fits(), name), LOAD).command
    assert options(command)["model"] == name
