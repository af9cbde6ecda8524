"""vllm-mindspore: the worked example of its tuning guide."""

import pytest

from kvcore.advice.vary import tensor_parallel_curves
from kvcore.base.errors import ScenarioError
from kvcore.base.numbers import DASH
from kvcore.base.parts import SUMMED
from kvcore.base.units import GIB, gib
from kvcore.base.words import Language, words
from kvcore.charts.memory_bar import memory_bar
from kvcore.charts.stack import MISSING
from kvcore.charts.summary import Outcome, cards, verdict_sentence
from kvcore.engine.rank_memory import RankMemory
from kvcore.engines.registry import engine_of
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import ASCEND, memory_with, setting_for


def memory_of(env: dict[str, object], weights_gib: float = 15.0) -> RankMemory:
    setting = setting_for(
        engine="vllm-mindspore",
        engine_version="0.4.0",
        accelerator=ASCEND,
        env=env,
        gpu_memory_utilization=0.9,
    )
    return memory_with(setting, weights_gib)


def test_sixty_four_times_nine_tenths_less_fifty() -> None:
    memory = memory_of({"ASCEND_TOTAL_MEMORY_GB": 64, "vLLM_MODEL_MEMORY_USE_GB": 50})
    assert gib(memory.available_kv.value) == pytest.approx(7.6)
    assert gib(memory.total.value) == 64
    assert gib(memory.system.value) == 3
    assert gib(memory.weights.value + memory.framework.value + memory.activations.value) == pytest.approx(50)
    assert sum(getattr(memory, name).value for name in SUMMED) == memory.total.value


def test_the_pre_run_frees_what_the_model_does_not_use() -> None:
    """actual peak 28.9 GB with 7.6 GB of cache: 21.3 GB of model, so 36.3 GB are left."""
    memory = memory_of({"ASCEND_TOTAL_MEMORY_GB": 64, "vLLM_MODEL_MEMORY_USE_GB": 21.3})
    assert gib(memory.available_kv.value) == pytest.approx(36.3)


def test_a_model_allowance_above_the_budget_leaves_less_than_nothing() -> None:
    memory = memory_of({"ASCEND_TOTAL_MEMORY_GB": 64, "vLLM_MODEL_MEMORY_USE_GB": 60})
    assert memory.available_kv.value < 0
    assert memory.kv_cache.value == 0


def test_defaults_are_those_of_the_guide() -> None:
    assert gib(memory_of({}).available_kv.value) == pytest.approx(7.6)


@pytest.mark.parametrize("value", ["much", "-1", "0", "nan"])
def test_unusable_variables_are_named(value: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        memory_of({"vLLM_MODEL_MEMORY_USE_GB": value})
    assert (caught.value.code, caught.value.field) == ("invalid-value", "env.vLLM_MODEL_MEMORY_USE_GB")


def profiled(**fields: object) -> Plan:
    asked = {
        "model": "Qwen/Qwen3-8B",
        "engine": "vllm-mindspore",
        "accelerator": ASCEND,
        "max_model_len": 16384,
    }
    return plan(scenario_from_request(asked | fields))


@pytest.mark.parametrize("version", ["0.5.0", "0.5.1"])
def test_releases_from_0_5_on_profile(version: str) -> None:
    """The budget equation of vLLM 0.11.0, on which they run; its graphs need `-O 3`."""
    one = profiled(engine_version=version)
    assert (one.resolved.engine_version, one.resolved.cudagraph_capture_sizes) == ("0.11.0", ())
    memory = one.memory
    assert memory is not None
    left = memory.budget.value - memory.weights.value - memory.activations.value - memory.framework.value
    assert memory.available_kv.value == int(left)
    assert memory.system.value < GIB


def test_the_reserved_pool_may_be_a_block_more_or_less() -> None:
    """Two remainders of a block of 2 GB, or of what the variable says: four fifths of their differences are within."""
    reaches = []
    for env in ({}, {"MS_MEMPOOL_BLOCK_SIZE": "8"}):
        memory = profiled(env=env).memory
        assert memory is not None
        low, high = memory.activations.bounds
        assert low == max(0.0, 2 * memory.activations.value - high)
        reaches.append(gib(high - memory.activations.value))
    within = 1 - 0.2**0.5
    assert reaches == pytest.approx([2 * within, 8 * within])


def test_variables_stand_for_the_last_release_that_reads_them() -> None:
    given = {"env": {"vLLM_MODEL_MEMORY_USE_GB": "30"}}
    asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-mindspore", "accelerator": ASCEND}
    named, silent = scenario_from_request(asked | given), scenario_from_request(asked)
    assert [str(engine_of(one).planned_release(one).version) for one in (named, silent)] == [
        "0.9.1",
        "0.11.0",
    ]
    assert [engine_of(one).assumed_version(one) for one in (named, silent)] == ["0.4.0", "0.5.1"]
    assert [engine_of(one).measures_memory(one) for one in (named, silent)] == [False, True]
    unread = {notice.code for notice in profiled(engine_version="0.5.1", **given).notices}
    assert "memory-variable-not-read" in unread
    assert "memory-variable-not-read" not in {notice.code for notice in profiled(**given).notices}


def declared(tensor_parallel_size: int, share: str, model: str = "deepseek-ai/DeepSeek-V3") -> Plan:
    asked = {
        "model": model,
        "engine": "vllm-mindspore",
        "accelerator": ASCEND,
        "tensor_parallel_size": tensor_parallel_size,
        "gpu_memory_utilization": 0.9,
        "max_model_len": 16384,
        "env": {"vLLM_MODEL_MEMORY_USE_GB": share},
    }
    return plan(scenario_from_request(asked))


# DeepSeek-V3 on 16 NPUs: 40.3 GiB of weights, 3 for the system, 64 x 0.9 - 22 = 35.6 for the KV cache, less the 64 of
# the card. On one NPU 628.9 GiB, and 57.6 - 50 = 7.6.
@pytest.mark.parametrize(
    ("size", "share", "missing", "reason"),
    [
        (16, "22", "14.9", ("memory that the model is given", "分给模型的显存")),
        (1, "50", "575.5", ("larger than the budget", "预算")),
    ],
)
def test_sentence_bar_and_cards_agree_where_the_weights_do_not_fit(
    size: int, share: str, missing: str, reason: tuple[str, str]
) -> None:
    one = declared(size, share)
    assert one.verdict is Verdict.WEIGHTS_DO_NOT_FIT
    assert one.cache is None
    for language, reasons in zip((Language.ENGLISH, Language.CHINESE), reason, strict=True):
        t = words(language)
        sentence = verdict_sentence(one, t)
        assert sentence.outcome is Outcome.FAILS
        assert reasons in sentence.text
        assert f"{missing} GiB" in sentence.text
        bar = memory_bar(one, t)
        titles = [piece.title for piece in bar.bars[0].pieces if piece.look == MISSING]
        assert [title for title in titles if f"{missing} GiB" in title] == titles != []
        assert cards(one, None, t)[0].value == DASH
    codes = [notice.code for notice in one.notices]
    assert ("model-memory-below-weights" in codes, "memory-overrun" in codes) == (True, False)


def test_curves_of_sizes_that_do_not_load_are_empty() -> None:
    """Of 628.9 GiB of weights, with 7.6 of KV cache and 3 of system in 64, a sixteenth fits and an eighth does not."""
    curves = tensor_parallel_curves(declared(16, "50"), (16384,))
    runs = {one.tensor_parallel_size: one.concurrency[0] > 0 for one in curves}
    assert runs == {1: False, 2: False, 4: False, 8: False, 16: True}


def test_a_share_just_below_the_weights_is_told() -> None:
    """Qwen3-8B: 15.3 of weights and 57.6 - 14 = 43.6 of KV cache and 3 of system leave 2.1 of 64 for the rest."""
    one = declared(1, "14", "Qwen/Qwen3-8B")
    noticed = {notice.code: notice for notice in one.notices}
    assert noticed["model-memory-all-weights"].params["room"] == "2.1"
    assert one.verdict is Verdict.FITS


def test_a_share_above_the_weights_runs() -> None:
    one = declared(16, "50")
    assert (one.verdict, one.missing_bytes) == (Verdict.FITS, 0)
