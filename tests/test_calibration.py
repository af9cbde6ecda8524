"""Logs compared with plans: parts, causes, overrides. Measured values are those of the logs in tests/data/logs."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore.base.errors import MESSAGES, CatalogueError, KvPlannerError, ScenarioError
from kvcore.base.quantity import Grade
from kvcore.base.units import GIB, gib
from kvcore.cli import main
from kvcore.contract.result import result_of
from kvcore.engine.rank_memory import half_width
from kvcore.evidence.calibration import (
    Comparison,
    calibrated,
    compare,
    fields_by_origin,
)
from kvcore.evidence.log.reader import StartupLog, read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured, Origin, Scenario
from kvcore.wire.request import scenario_from_request

DATA = Path(__file__).parent / "data" / "logs"


def the_log(name: str) -> StartupLog:
    return read_log((DATA / name).read_text("utf-8"))


def current(**fields: object) -> Scenario:
    return scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", **fields})


def held(name: str, scenario: Scenario | None = None) -> tuple[StartupLog, Plan, Comparison]:
    log = the_log(name)
    planned = plan(scenario or scenario_from_log(log, current()).scenario)
    return log, planned, compare(log, planned)


def test_parts_of_a_full_log() -> None:
    _, planned, comparison = held("v1_0.19.0_tp2_debug.log")
    measured = {part.part: part.measured_gib for part in comparison.parts}
    assert measured == {
        "system": 1.53,
        "framework": 2.09,
        "weights": 67.8,
        "activations": 2.29,
        "cuda_graphs": 1.61,
        "available_kv": 3.04,
    }
    assert planned.memory is not None
    for part in comparison.parts:
        quantity = planned.loaded_weights if part.part == "weights" else getattr(planned.memory, part.part)
        assert part.predicted_gib == gib(quantity.value)
        assert part.difference_gib == pytest.approx(part.measured_gib - part.predicted_gib)


def test_the_kv_plan_alone_is_the_engine_s() -> None:
    # 3.04 GiB over 19,920 printed tokens: the planner computes the same number from the memory that was measured.
    _, _, comparison = held("v1_0.19.0_tp2_debug.log")
    tokens, concurrency = comparison.figures
    assert (tokens.measured, tokens.from_measured_kv) == (19920.0, 19920)
    assert concurrency.measured == 2.43
    assert concurrency.from_measured_kv == pytest.approx(2.43, abs=0.005)


def test_a_part_that_the_log_does_not_give_is_not_judged() -> None:
    _, _, comparison = held("v1_0.9.2_a100.log")
    framework = next(part for part in comparison.parts if part.part == "framework")
    assert (framework.measured_gib, framework.difference_gib, framework.is_inside) == (None, None, None)


# budget of the log less its other parts = what the part that takes the rest has to be, GiB
REST = [
    ("v1_0.19.0_tp2_debug.log", "non_torch_gib", 79.19 * 0.95 - 67.8 - 2.29 - 3.04),
    ("v1_0.10.2_h100.log", "non_torch_gib", 79.18 * 0.9 - 56.9342 - 5.58 - 8.68),
    ("v1_0.26.0_tp4_estimate.log", "non_torch_gib", 184.31 * 0.92 - 106.69 - 6.31 - 4.99 - 50.62),
    ("ascend_main_quickstart.log", "peak_activation_gib", 0.22),
]


@pytest.mark.parametrize(("name", "field", "value"), REST)
def test_overrides_close_the_budget_of_the_log(name: str, field: str, value: float) -> None:
    log, planned, _ = held(name)
    given = calibrated(log, planned)
    assert given.available_kv_gib is None
    assert getattr(given, field) == pytest.approx(value, abs=0.001)


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("v1_*.log")) + sorted(DATA.glob("asc*")), ids=lambda p: p.stem
)
def test_calibrated_plan_has_the_kv_memory_of_the_log(path: Path) -> None:
    log = read_log(path.read_text("utf-8"))
    if log.worst_rank.available_kv_gib is None:
        pytest.skip("this log does not give it")
    scenario = scenario_from_log(log, current()).scenario
    corrected = plan(replace(scenario, measured=calibrated(log, plan(scenario))))
    assert corrected.available_kv_bytes is not None
    assert gib(corrected.available_kv_bytes) == pytest.approx(
        log.worst_rank.available_kv_gib.value, abs=0.001
    )


L40S_LOG = """
Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-32B', dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=4
Model loading took 15.4194 GiB and 9.1 seconds
Available KV cache memory: 22.40 GiB
Graph capturing finished in 21 secs, took 0.92 GiB
"""


def test_only_printed_figures_are_called_measured() -> None:
    asked = {"accelerator": "L40S-48GB", "engine_version": "0.11.0", "tensor_parallel_size": 4}
    log, planned = read_log(L40S_LOG), plan(current(**asked))
    given = calibrated(log, planned)
    assert fields_by_origin(given) == {
        Origin.MEASURED: ("weights", "cuda_graphs"),
        Origin.FITTED: ("activations",),
    }
    before, after = planned.memory, plan(replace(planned.scenario, measured=given)).memory
    assert before is not None
    assert after is not None
    assert (after.weights.grade, after.activations.grade) == (Grade.MEASURED, Grade.FITTED)
    assert after.activations.interval is not None
    low, high = (gib(bound) for bound in after.activations.interval)
    # As far off as the estimate that it replaces, and no nearer than the estimate's own interval.
    assert low <= gib(before.activations.value) + 1e-6 or high >= gib(before.activations.value) - 1e-6
    assert before.activations.interval is not None
    assert high - low >= gib(before.activations.interval[1] - before.activations.interval[0]) - 1e-6
    # The sum was printed: to fit one part to it does not make the KV memory less certain.
    assert gib(after.available_kv.value) == pytest.approx(22.40, abs=0.001)
    assert half_width(after.available_kv) < half_width(before.available_kv)


def test_the_json_marks_parts_that_were_not_measured() -> None:
    measured = {"weights_gib": 15.4194, "peak_activation_gib": 1.9, "fitted": ["peak_activation_gib"]}
    asked = {"accelerator": "L40S-48GB", "engine_version": "0.11.0", "tensor_parallel_size": 4}
    result = result_of(plan(current(**asked, measured=measured)))
    assert result["origins"] == {"weights_gib": "measured", "peak_activation_gib": "fitted"}
    assert set(result["interval_gib"]) == {
        "framework",
        "weights",
        "activations",
        "cuda_graphs",
        "system",
        "kv_cache",
    }
    assert "origins" not in result_of(plan(current(**asked)))


def test_a_printed_part_that_closes_the_sum_by_a_rounding_stays_measured() -> None:
    # 0.19.0: weights, peak and framework are printed; the budget misses their sum by 0.01 GiB.
    log, planned, _ = held("v1_0.19.0_tp2_debug.log")
    assert calibrated(log, planned).fitted == ()


def test_calibrated_kv_memory_follows_the_utilization() -> None:
    log, planned, _ = held("v1_0.10.2_h100.log")
    scenario = replace(planned.scenario, measured=calibrated(log, planned))
    more = plan(replace(scenario, gpu_memory_utilization=0.95))
    assert more.available_kv_bytes is not None
    assert gib(more.available_kv_bytes) == pytest.approx(8.68 + 0.05 * 79.18, abs=0.01)


def test_a_log_of_an_unknown_card_fixes_the_kv_memory() -> None:
    # 40 GB card planned as the H100 at hand: 32 GiB cannot be activations.
    log, planned, comparison = held("v1_0.9.2_a100.log")
    assert calibrated(log, planned).available_kv_gib == 18.69
    assert "cause-unnamed-card" in {notice.code for notice in comparison.notices}


def test_causes_tell_another_process_from_a_display() -> None:
    log = the_log("v1_0.31_consumed_colours.log")  # 1.54 GiB of the card are taken at the start
    found = scenario_from_log(log, current()).scenario
    codes = {}
    for card in ("H100 80GB HBM3", "GeForce RTX 4090"):
        current_card = replace(found, accelerator=dataclasses.replace(found.accelerator, name=card))
        system = next(p for p in compare(log, plan(current_card)).parts if p.part == "system")
        codes[card] = [cause.code for cause in system.causes]
    assert codes["H100 80GB HBM3"] == ["cause-other-process"]
    assert codes["GeForce RTX 4090"] == ["cause-display", "cause-other-process"]


def test_eager_mode_is_told() -> None:
    arguments = "non-default args: {'model': 'Qwen/Qwen3-8B', 'enforce_eager': True}"
    log = read_log(f"{arguments}\nGraph capturing finished in 1 secs, took 4.00 GiB")
    comparison = compare(log, plan(current(model="Qwen/Qwen3-8B")))
    graphs = next(part for part in comparison.parts if part.part == "cuda_graphs")
    assert [cause.code for cause in graphs.causes] == ["cause-eager"]


def test_a_start_that_found_its_kernels_compiled_is_told() -> None:
    """Qwen3-4B on an RTX 4090, 0.27.1: a restart peaks 0.7 GiB below the first start."""
    log = read_log(
        "Initializing a V1 LLM engine (v0.27.1) with config: model='Qwen/Qwen3-4B', dtype=torch.bfloat16\n"
        "Free memory on device (22.64/23.52 GiB) on startup. Desired GPU memory utilization is (0.8, 18.81 GiB). "
        "Actual usage is 12.78 GiB for consumed memory (weights + non-torch), 0.15 GiB for peak activation, and "
        "1.28 GiB for CUDAGraph memory. Current kv cache memory in use is 5.89 GiB."
    )
    scenario = current(model="Qwen/Qwen3-4B", accelerator="RTX-4090-24GB", engine_version="0.27.1")
    causes = {part.part: [cause.code for cause in part.causes] for part in compare(log, plan(scenario)).parts}
    assert causes["activations"] == ["cause-compiled-before"]


def test_patched_builds_other_versions_and_other_flags_are_told() -> None:
    text = (
        "Initializing a V1 LLM engine (v0.11.2.dev278+g55c6a5c) with config: model='Qwen/Qwen3-8B', "
        "max_seq_len=4096, dtype=auto\n"
        "Available KV cache memory: 20.00 GiB"
    )
    log = read_log(text)
    comparison = compare(
        log, plan(current(model="Qwen/Qwen3-8B", engine_version="0.19.0", max_model_len=8192))
    )
    kv = next(part for part in comparison.parts if part.part == "available_kv")
    assert "cause-patched-build" in [cause.code for cause in kv.causes]
    assert {"cause-other-version", "cause-other-flags"} <= {notice.code for notice in comparison.notices}
    flags = next(notice for notice in comparison.notices if notice.code == "cause-other-flags")
    assert flags.params["fields"] == "max_model_len"


def test_a_lower_kv_memory_is_traced_to_its_part() -> None:
    log, planned, _ = held("v0_0.8.2_tp4.log")  # 1.3 GiB less activations, 1.4 GiB more KV memory
    assert planned.memory is not None
    left = planned.memory.available_kv
    sure = replace(left, interval=(left.value - GIB / 4, left.value + GIB / 4))
    comparison = compare(log, replace(planned, memory=replace(planned.memory, available_kv=sure)))
    kv = next(part for part in comparison.parts if part.part == "available_kv")
    assert [cause.code for cause in kv.causes] == ["cause-follows-activations"]


class TestScenarioFromLog:
    def test_everything_of_the_log_counts(self) -> None:
        found = scenario_from_log(
            the_log("v1_0.19.0_tp2_debug.log"), current(max_num_seqs=7, kv_cache_dtype="fp8")
        )
        scenario = found.scenario
        assert (scenario.model, scenario.engine_version, found.borrowed) == (
            "Qwen/Qwen2.5-72B-Instruct",
            "0.19.0",
            (),
        )
        assert (scenario.parallel.tensor_parallel_size, scenario.max_num_seqs, scenario.kv_cache_dtype) == (
            2,
            1024,
            "auto",
        )
        assert scenario.accelerator is not None
        assert (scenario.accelerator.id, scenario.accelerator.memory_gib) == ("H100-80GB", 79.19)

    def test_a_model_given_by_a_path(self) -> None:
        found = scenario_from_log(the_log("ascend_0.11.0rc3_910b4.log"), current())
        assert (found.scenario.model, found.unknown_model) == ("Qwen/Qwen3-8B", "")

    def test_an_unknown_model_is_planned_as_the_one_at_hand(self) -> None:
        log = read_log("non-default args: {'model': 'nobody/heard-of-it', 'max_model_len': 4096}")
        found = scenario_from_log(log, current())
        assert (found.scenario.model, found.unknown_model) == ("Qwen/Qwen3-32B", "nobody/heard-of-it")
        assert found.borrowed == ("model", "accelerator", "engine_version")
        with pytest.raises(CatalogueError, match="not in the catalogue"):
            scenario_from_log(log)

    def test_a_few_lines_keep_the_flags_at_hand(self) -> None:
        found = scenario_from_log(read_log("Available KV cache memory: 8.68 GiB"), current(max_num_seqs=7))
        assert found.scenario.max_num_seqs == 7
        assert "flags" in found.borrowed
        with pytest.raises(ScenarioError, match="model is missing"):
            scenario_from_log(read_log("Available KV cache memory: 8.68 GiB"))


LINES = [line for path in sorted(DATA.glob("*.log")) for line in path.read_text("utf-8").splitlines()]


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=12),
    number=st.sampled_from(["0", "-1", "1e9", "7", "99999999", "0.0001"]),
    share=st.integers(1, 9),
)
def test_any_mixture_of_lines_is_compared_or_refused_by_code(
    lines: list[str], number: str, share: int
) -> None:
    figures = re.compile(r"\d+(\.\d+)?")
    text = "\n".join(
        figures.sub(lambda match: number if match.start() % 10 == share else match[0], line) for line in lines
    )
    try:
        log = read_log(text)
        planned = plan(scenario_from_log(log, current()).scenario)
    except KvPlannerError:
        return
    comparison = compare(log, planned)
    assert {cause.code for part in comparison.parts for cause in part.causes} <= set(MESSAGES)
    for value in calibrated(log, planned).values().values():
        assert value >= 0


def test_parts_are_told_by_their_origin_in_the_order_of_the_bar() -> None:
    assert fields_by_origin(Measured()) == {}
    given = Measured(available_kv_gib=1.0, weights_gib=3.0, system_gib=0.5, carried=("weights_gib",))
    assert fields_by_origin(given) == {
        Origin.MEASURED: ("system", "available_kv"),
        Origin.CARRIED: ("weights",),
    }


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        assert main(["log", *arguments]) == 0
        return capsys.readouterr().out

    def test_the_report_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        report = json.loads(self.run(capsys, str(DATA / "v1_0.10.2_h100.log"), "--json"))
        assert report["measured"]["available_kv_gib"] == 8.68
        assert report["calibrated"]["weights_gib"] == 56.9342
        assert [part["part"] for part in report["comparison"]["parts"]][-1] == "available_kv"
        assert report["prediction_error"] is None

    def test_the_report_as_a_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = self.run(capsys, str(DATA / "v0_0.8.2_tp4.log"))
        assert "activations" in out
        assert "outside its interval" in out
        assert '{"measured": {"weights_gib": 4.0269' in out

    def test_a_model_that_is_not_bundled(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        log = tmp_path / "start.log"
        log.write_text(
            "non-default args: {'model': 'nobody/heard-of-it'}\nAvailable KV cache memory: 8.00 GiB"
        )
        report = json.loads(self.run(capsys, str(log), "--json"))
        assert (report["comparison"], report["prediction_error"]["code"]) == (None, "unknown-model")
        assert "not planned" in self.run(capsys, str(log))
        config = tmp_path / "config.json"
        config.write_text(json.dumps(dict(current(model="Qwen/Qwen3-8B").config.raw)))
        report = json.loads(self.run(capsys, str(log), "--json", "--config", str(config)))
        assert report["comparison"] is not None

    def test_a_text_that_is_no_log(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "text"
        path.write_text("nothing of an engine")
        assert main(["log", str(path)]) == 2
        assert "none of the engine's start-up lines" in capsys.readouterr().err

    def test_a_failed_start(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "text"
        path.write_text(
            "non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 40960}\n"
            "ValueError: To serve at least one request with the models's max seq len (40960), (5.63 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (1.25 GiB). Based on the available memory, "
            "the estimated maximum model length is 9088. Try increasing"
        )
        out = self.run(capsys, str(path))
        assert "the start failed: one request of 40960 tokens needs 5.63 GiB" in out
        assert "max_model_len = 9088" in out
