"""Alert rules and dashboard: read back, parsed as PromQL, and only with metrics that the version exports."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import promql_parser
import pytest
import yaml
from msgspec.structs import replace

from kvcore.base.words import Language, words
from kvcore.deploy.going_live import (
    Load,
    Tick,
    alert_rules,
    checklist,
    checklist_markdown,
    dashboard,
    default_load,
    load_test,
    never_fires,
    thresholds,
)
from kvcore.deploy.shell import launch_command
from kvcore.engines.vllm.availability import exported_metrics, load_generator
from kvcore.planning import Plan
from tests import present_plans

VERSIONS = ("0.6.6", "0.8.5", "0.9.2", "0.11.0", "0.19.0", "0.28.0", "0.32.0", "0.33.0")
DURATION = re.compile(r"\d+[smhd]")


def planned(version: str, **fields: Any) -> Plan:
    return present_plans.request(engine_version=version, **fields)


def selected(expression: str) -> set[str]:
    """The names of all series in an expression, which has to parse."""
    names: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)
        return True

    promql_parser.walk(promql_parser.parse(expression), pre_visit=visit)
    assert names
    return names


def exported(plan: Plan) -> set[str]:
    metrics = exported_metrics(plan.resolved.version, plan.resolved.is_v0)
    return {series for metric in metrics.values() for series in metric.series}


def rules_of(text: str) -> list[dict[str, Any]]:
    document = yaml.safe_load(text)
    assert set(document) == {"groups"}
    (group,) = document["groups"]
    assert set(group) == {"name", "rules"}
    return group["rules"]


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_are_a_rule_file_of_metrics_that_exist(version: str) -> None:
    plan = planned(version)
    rules = rules_of(alert_rules(plan, thresholds(plan, default_load(plan))))
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[a-zA-Z_]\w*", rule["alert"])
        assert DURATION.fullmatch(rule["for"])
        assert selected(rule["expr"]) <= exported(plan)
    assert len({rule["alert"] for rule in rules}) == len(rules) == 7


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dashboard_has_panels_of_known_metrics(version: str) -> None:
    plan = planned(version)
    board = json.loads(dashboard(plan, thresholds(plan, default_load(plan))))
    check_dashboard(board)
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert selected(target["expr"]) <= exported(plan)
    (variable,) = [one for one in board["templating"]["list"] if one["type"] == "query"]
    metric = re.fullmatch(r"label_values\(([\w:]+), model_name\)", variable["query"])
    assert metric is not None
    assert metric[1] in exported(plan)


def check_dashboard(board: dict[str, Any]) -> None:
    """Keys that Grafana needs to import a dashboard."""
    assert isinstance(board["title"], str)
    assert board["uid"] is None
    assert isinstance(board["schemaVersion"], int)
    variables = {one["name"] for one in board["templating"]["list"]}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) >= 7
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["type"] == "timeseries"
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken
        taken |= cells
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) >= 1
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables


def test_the_old_name_of_the_cache_gauge_for_old_engines() -> None:
    plan = planned("0.8.5")
    assert "vllm:gpu_cache_usage_perc" in alert_rules(plan, thresholds(plan, default_load(plan)))
    new = planned("0.33.0")
    text = alert_rules(new, thresholds(new, default_load(new)))
    assert "vllm:kv_cache_usage_perc" in text
    assert "gpu_cache_usage_perc" not in text


def test_thresholds_follow_the_plan() -> None:
    plan = present_plans.rule_of_thumb()  # 20 at once
    limits = thresholds(plan, Load(requests=7, prompt_tokens=100, answer_tokens=100))
    assert limits.kv_cache_usage == 0.95  # 1 − 1/20
    assert limits.waiting_requests == 4  # half of 7, rounded up
    few = present_plans.request(tensor_parallel_size=1)
    assert few.cache is not None
    assert thresholds(few, default_load(few)).kv_cache_usage == pytest.approx(
        1 - 1 / few.cache.max_concurrency, abs=0.005
    )


def test_a_plan_without_a_cache_still_has_thresholds() -> None:
    limits = thresholds(present_plans.too_big(), default_load(present_plans.too_big()))
    assert limits.kv_cache_usage == 0.5
    assert limits.waiting_requests == 1


def test_the_default_load_is_the_plans_capacity() -> None:
    assert default_load(present_plans.rule_of_thumb()) == Load(
        requests=20, prompt_tokens=7680, answer_tokens=512
    )


def test_nothing_of_a_model_name_is_in_a_template() -> None:
    plan = present_plans.fits()
    hostile = present_plans.renamed(plan, "{{ .Labels }}$__all\"'")
    limits = thresholds(plan, default_load(plan))
    assert alert_rules(hostile, limits) == alert_rules(plan, limits)
    assert dashboard(hostile, limits) == dashboard(plan, limits)


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
    program = load_generator(plan.resolved.version)
    assert shlex.split(command)[: len(program.words)] == list(program.words)
    assert set(options(command)) <= program.flags
    assert set(options(load_test(plan, LOAD).rate_command)) <= program.flags


def test_half_more_than_the_target_is_in_flight() -> None:
    test = load_test(present_plans.fits(), LOAD)
    assert test.requests_at_once == 11  # 10.5 rounded up
    given = options(test.command)
    assert given["max-concurrency"] == "11"
    assert (given["random-input-len"], given["random-output-len"]) == ("1000", "200")


def test_half_more_than_the_target_rate_is_sent_for_five_minutes() -> None:
    # The post-mortem's 50 requests a second: 75 a second × 300 s
    given = options(load_test(present_plans.fits(), replace(LOAD, per_second=50)).rate_command)
    assert (given["request-rate"], given["num-prompts"]) == ("75.0", "22500")
    assert "max-concurrency" not in given


def test_a_rate_that_nobody_states_is_the_most_that_the_bandwidth_allows() -> None:
    # 7 requests at once / (200 tokens × the seconds in which weights and 7 × 1,000 tokens are read)
    seconds = 200 * (63_968_421_888 + 7 * 1000 * 262_144) / 3350e9
    test = load_test(present_plans.fits(), LOAD)
    assert test.requests_per_second == pytest.approx(1.5 * 7 / seconds, rel=1e-3)


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
    assert test.rate_command == ""


def test_a_hostile_model_name_stays_one_word() -> None:
    name = "a'; rm -rf / #\n$(x) `y`"
    command = load_test(present_plans.renamed(present_plans.fits(), name), LOAD).command
    assert options(command)["model"] == name


T = words(Language.ENGLISH)


def ticks(plan, load=None) -> dict[str, Tick]:
    load = load or default_load(plan)
    return {item.title: item.tick for item in checklist(plan, load, thresholds(plan, load), T)}


def test_a_plan_that_fits_answers_the_first_four() -> None:
    found = list(ticks(present_plans.request(tensor_parallel_size=2)).values())
    assert found[:4] == [Tick.ANSWERED] * 4
    assert set(found[4:]) == {Tick.OPEN}


def test_a_plan_that_does_not_fit_has_its_verdict() -> None:
    found = ticks(present_plans.too_big())
    assert found["The engine starts"] is Tick.FAILS
    assert found["The target fits at once"] is Tick.FAILS
    assert found["Peak memory leaves room"] is Tick.FAILS


def test_a_target_above_the_capacity_fails() -> None:
    plan = present_plans.rule_of_thumb()  # 20 at once
    more = Load(requests=21, prompt_tokens=7680, answer_tokens=512)
    exactly = Load(requests=20, prompt_tokens=7680, answer_tokens=512)
    assert ticks(plan, more)["The target fits at once"] is Tick.FAILS
    assert ticks(plan, exactly)["The target fits at once"] is Tick.ANSWERED


def test_a_target_above_the_seats() -> None:
    plan = present_plans.request(tensor_parallel_size=8, max_num_seqs=4)
    load = Load(requests=5, prompt_tokens=10, answer_tokens=10)
    assert ticks(plan, load)["The target fits at once"] is Tick.FAILS


def test_prompt_and_answer_longer_than_the_context() -> None:
    load = Load(requests=1, prompt_tokens=8000, answer_tokens=193)
    assert ticks(present_plans.fits(), load)["Prompt and answer fit into the context"] is Tick.FAILS


def test_every_item_of_the_post_mortem_is_there() -> None:
    plan = present_plans.fits()
    load = default_load(plan)
    text = " ".join(
        f"{item.title} {item.detail}" for item in checklist(plan, load, thresholds(plan, load), T)
    )
    for word in ("P99", "Peak memory", "150 %", "History of conversations", "Alerts"):
        assert word in text


def test_the_file_has_a_box_for_every_item() -> None:
    plan = present_plans.request(tensor_parallel_size=2)
    load = default_load(plan)
    limits = thresholds(plan, load)
    items = checklist(plan, load, limits, T)
    text = checklist_markdown(plan, items, ("history", "starts"), load, limits, T)
    boxes = [line for line in text.splitlines() if line.startswith("- [")]
    assert len(boxes) == len(items)
    done = {line.split("**")[1] for line in boxes if line.startswith("- [x]")}
    answered = {item.title for item in items if item.tick is Tick.ANSWERED}
    assert done == answered | {"History of conversations limited"}
    assert launch_command(plan) in text


def test_a_tick_does_not_cover_a_failure_in_the_file() -> None:
    plan = present_plans.too_long()
    load = default_load(plan)
    limits = thresholds(plan, load)
    items = checklist(plan, load, limits, T)
    text = checklist_markdown(plan, items, tuple(item.name for item in items), load, limits, T)
    assert "- [ ] **The engine starts** (fails)" in text


def test_a_name_is_no_markdown() -> None:
    plan = present_plans.renamed(present_plans.fits(), "[x](https://example.org)*")
    load = default_load(plan)
    limits = thresholds(plan, load)
    text = checklist_markdown(plan, checklist(plan, load, limits, T), (), load, limits, T)
    assert text.splitlines()[0] == "# Before going live: _x__https_//example.org__"


@pytest.mark.parametrize(
    ("version", "seconds", "first", "never"),
    [
        ("0.33.0", 960, 160, False),
        ("0.33.0", 7680, 2, True),
        ("0.33.0", 60, 2560, True),
        ("0.6.6", 50, 7.5, False),
        ("0.6.6", 60, 2, True),
        ("0.6.6", 50, 10, True),
    ],
)
def test_beyond_the_last_bound_nothing_fires(version: str, seconds: float, first: float, never: bool) -> None:
    """Bounds: 7,680 and 2,560 s; of V0 60 and 10 s."""
    plan = planned(version)
    limits = replace(thresholds(plan, default_load(plan)), request_seconds=seconds, first_token_seconds=first)
    assert never_fires(plan, limits) is never
