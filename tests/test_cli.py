"""The command line: each request gets a result, whatever is in it, and whatever is wrong with this program."""

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcore import catalogue, cli
from kvcore.contract import result

ROOT = Path(__file__).parents[1]
CARD = "H100-80GB"
GOOD = json.dumps({"id": "good", "model": "Qwen/Qwen3-32B", "accelerator": CARD, "tensor_parallel_size": 2})


def answered(
    *lines: str | bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[Any]:
    """The results of `plan --jsonl` for these lines."""
    data = b"\n".join(
        line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line for line in lines
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert cli.main(["plan", "--jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def config_of(model: str, **changes: Any) -> str:
    """A request with the config of `model`, its language part changed."""
    config = json.loads(catalogue.find_model(model).config.text)
    config.get("text_config", config).update(changes)
    return json.dumps({"config": config, "accelerator": CARD})


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        pytest.param(
            json.dumps(
                {"model": "tiiuae/falcon-mamba-7b", "accelerator": CARD, "speculative_config": {"method": "eagle3"}}
            ),
            "speculative-method-unsupported", "speculative_config.method", id="eagle3 on a model without heads",
        ),
        pytest.param(
            config_of("google/gemma-3-27b-it", layer_types=["full_attention"] * 61 + ["oops"]),
            "invalid-config-value", "config.text_config.layer_types", id="unknown layer type",
        ),
        pytest.param(
            config_of("Qwen/Qwen3-32B").replace('"hidden_size": 5120', f'"hidden_size": {"9" * 400}'),
            "number-too-long", "config.hidden_size", id="400 digits in a config",
        ),
        pytest.param(
            GOOD[:-1] + f', "gpu_memory_utilization": {"9" * 400}}}',
            "number-too-long", "gpu_memory_utilization", id="400 digits in a request",
        ),
        pytest.param(
            GOOD[:-1] + f', "cpu_offload_gb": {"9" * 5000}}}',
            "number-too-long", "cpu_offload_gb", id="more digits than Python reads",
        ),
        pytest.param(
            GOOD[:-1] + ', "cpu_offload_gb": 1e999}', "invalid-value", "cpu_offload_gb", id="a float beyond floats"
        ),
        pytest.param(
            config_of("Qwen/Qwen3.5-4B", linear_conv_kernel_dim=1),
            "invalid-config-value", "config.text_config.linear_conv_kernel_dim", id="a convolution of one tap",
        ),
        pytest.param(
            json.dumps({"model": "Qwen/Qwen3-8B", "engine": "vllm-mindspore", "accelerator": "Ascend-910B3-64GB",
                        "env": {"ASCEND_TOTAL_MEMORY_GB": "x4"}}),
            "invalid-value", "env.ASCEND_TOTAL_MEMORY_GB", id="a variable that is no number",
        ),
        pytest.param('{"id": "\\ud800"}', "invalid-value", "id", id="half of one in the id"),
        pytest.param('{"id": NaN, "model": "Qwen/Qwen3-32B"}', "invalid-value", "id", id="NaN in the id"),
        pytest.param('{"id": [Infinity]}', "invalid-value", "id", id="an infinity in the id"),
        pytest.param(b'{"id": "\xff"}', "not-utf8", "", id="not UTF-8"),
        pytest.param(GOOD.encode("utf-16"), "not-utf8", "", id="UTF-16"),
        pytest.param('{"id": "\ud800"}', "not-utf8", "", id="half a character as UTF-8"),
    ],
)  # fmt: skip
def test_a_bad_line_is_a_coded_result_and_the_batch_goes_on(
    line: str | bytes,
    code: str,
    field: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad, good = answered(line, GOOD, monkeypatch=monkeypatch, capsys=capsys)[-2:]
    assert (bad["status"], bad["error"]["code"], bad["error"]["field"]) == ("error", code, field)
    assert (good["id"], good["status"], good["verdict"]) == ("good", "ok", "fits")


def test_a_defect_is_a_result_and_the_batch_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the type and the place of what went wrong, and nothing of what was sent."""
    plan = result.plan

    def broken(scenario: Any, batch: Any) -> Any:
        if scenario.max_model_len == 4321:
            raise KeyError("a visitor's own words")
        return plan(scenario, batch)

    monkeypatch.setattr(result, "plan", broken)
    with caplog.at_level(logging.ERROR):
        lines = (GOOD, GOOD.replace('"good"', '"bad"')[:-1] + ', "max_model_len": 4321}', GOOD)
        first, failed, last = answered(*lines, monkeypatch=monkeypatch, capsys=capsys)
    assert [first["status"], last["status"]] == ["ok", "ok"]
    assert (failed["id"], failed["error"]["code"]) == ("bad", "internal-error")
    assert "visitor" not in json.dumps(failed)
    assert "KeyError at tests/test_cli.py:" in caplog.text
    assert "kvcore/contract/result.py:" in caplog.text
    assert "visitor" not in caplog.text


def test_a_failing_command_prints_its_error_without_a_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("kvcore.evidence.log.reader.read_log", broken)
    log = tmp_path / "a.log"
    log.write_text("INFO Available KV cache memory: 1.50 GiB")
    assert cli.main(["log", str(log)]) == cli.UNREADABLE_INPUT
    captured = capsys.readouterr()
    assert "ZeroDivisionError" in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_a_byte_order_mark_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answered(GOOD.encode("utf-8-sig"), monkeypatch=monkeypatch, capsys=capsys)[0]
    assert result["status"] == "ok"


UNUSED_BY_A_PLAN = (
    "huggingface_hub", "httpx2", "rapidfuzz", "yaml", "segno", "sqlite3", "asyncio", "pandas", "plotly", "streamlit",
    "kvcore.advice", "kvcore.evidence", "kvcore.hub", "kvcore.workload", "kvcore.evidence.carry",
    "kvcore.engines.vllm_ascend", "kvcore.engines.vllm_mindspore",
)  # fmt: skip
ROOMS = ("kvcore.deploy.", "kvcore.explain.", "kvcore.charts.")


def test_a_plan_from_the_shell_imports_only_what_it_needs() -> None:
    script = "import sys; from kvcore.cli import main; main(['plan']); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=GOOD,
        cwd=ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    assert json.loads(ran.stdout)["verdict"] == "fits"
    imported = set(ran.stderr.split())
    assert "kvcore.planning" in imported
    assert [name for name in UNUSED_BY_A_PLAN if name in imported] == []
    assert {name for name in imported if name.startswith(ROOMS)} <= {
        "kvcore.deploy.launch",
        "kvcore.deploy.shell",
    }


def test_a_curve_marks_lengths_above_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}), "utf-8")
    common = ["curve", str(request), "--lengths", "8192,131072"]
    assert cli.main(common) == 0
    assert "131,072*" in capsys.readouterr().out
    assert cli.main([*common, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["curves"][0]["points"]
    assert ["warning" in point for point in points] == [False, True]
