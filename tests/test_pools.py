"""Servers for prompts and for answers alone: how many a traffic needs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvcore.advice.pools import PoolNeed, pool_line, pool_need, pool_report
from kvcore.cli import main
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

ASKED: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 32_768}


def request(role: str, **asked: Any) -> dict[str, Any]:
    return {**ASKED, "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": role}, **asked}


def need(role: str, per_second: float = 40, **asked: Any) -> PoolNeed:
    found = pool_need(plan(scenario_from_request(request(role, **asked))), per_second, 4000, 300)
    assert found is not None
    return found


def test_prompts_take_the_card_s_operations() -> None:
    """6.95 billion weights in matrices, two operations each, 989 TFLOPS."""
    found = need("kv_producer")
    assert found.seconds == pytest.approx(4000 * 2 * 6.946e9 / 989e12, rel=1e-3)
    assert found.replicas == math.ceil(40 * 4000 * 2 * 6.946e9 / 989e12)
    assert need("kv_producer", data_parallel_size=2).replicas == 2


def test_answers_take_the_card_s_bandwidth() -> None:
    """A step reads 15.1 GB of weights and 147,456 bytes of each token of all requests at once, at 3.35 TB/s."""
    found, other = need("kv_consumer"), need("kv_consumer", per_second=400)
    assert found.seconds is not None
    at_once = (found.seconds * 3.35e12 - 15.1e9) / (147_456 * 4150)
    pool = plan(scenario_from_request(request("kv_consumer"))).available_kv_bytes
    assert pool is not None
    assert at_once == pytest.approx(pool / (147_456 * 4300), rel=0.05)
    assert other.replicas == math.ceil(400 * 300 / (at_once / found.seconds))
    assert found.replicas == math.ceil(40 * 300 / (at_once / found.seconds))


@pytest.mark.parametrize(("link", "links"), [(None, None), (50, 40 * 4000 * 147_456 / 50e9)])
def test_what_moves_between_the_pools(link: float | None, links: float | None) -> None:
    found = need("kv_producer", link_gb_s=link)
    assert found.moved_bytes_per_second == 40 * 4000 * 147_456
    assert found.links == (None if links is None else pytest.approx(links))


def test_a_server_of_both_parts_is_of_no_pool() -> None:
    assert pool_need(plan(scenario_from_request(request("kv_both"))), 40, 4000, 300) is None
    assert pool_need(plan(scenario_from_request(ASKED)), 40, 4000, 300) is None


def test_a_card_without_known_speed_has_no_number_of_replicas() -> None:
    card = {"memory_gib": 80, "vendor": "nvidia", "name": "Unknown 80GB"}
    for role in ("kv_producer", "kv_consumer"):
        found = need(role, accelerator=card)
        assert found.replicas is None
        assert "unknown" in pool_line(found)
        assert pool_report(found)["seconds"] is None


def test_the_command_line_says_it_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, asked = tmp_path / "log.jsonl", tmp_path / "prefill.json"
    rows = [
        {"timestamp": 1_760_000_000 + at / 40, "input_length": 4000, "output_length": 300}
        for at in range(401)
    ]
    log.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    asked.write_text(json.dumps(request("kv_producer")), "utf-8")
    assert main(["workload", str(log), "--request", str(asked), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["pool"]
    assert (found["role"], found["replicas"]) == ("kv_producer", 3)
    assert main(["workload", str(log), "--request", str(asked)]) == 0
    assert "replicas of the pool for prompts: at least 3" in capsys.readouterr().out
