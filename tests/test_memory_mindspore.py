"""vllm-mindspore: the worked example of its tuning guide."""

import pytest

from kvcore.errors import ScenarioError
from kvcore.memory.budget import rank_memory
from kvcore.memory.parts import PART_NAMES, RankMemory
from kvcore.memory.weights import WeightBytes
from kvcore.units import GIB, gib
from tests.engine_examples import ASCEND, setting_for


def memory_of(env: dict[str, object], weights_gib: float = 15.0) -> RankMemory:
    setting = setting_for(engine="vllm-mindspore", accelerator=ASCEND, env=env, gpu_memory_utilization=0.9)
    return rank_memory(
        scenario=setting.scenario,
        architecture=setting.architecture,
        resolved=setting.resolved,
        accelerator=setting.accelerator,
        weights=WeightBytes(parameters=int(weights_gib * GIB), buffers=0, loading=0),
        stage=0,
    )


def test_sixty_four_times_nine_tenths_less_fifty() -> None:
    memory = memory_of({"ASCEND_TOTAL_MEMORY_GB": 64, "vLLM_MODEL_MEMORY_USE_GB": 50})
    assert gib(memory.available_kv.value) == pytest.approx(7.6)
    assert gib(memory.total.value) == 64
    assert gib(memory.system.value) == 3
    assert gib(memory.weights.value + memory.framework.value + memory.activations.value) == pytest.approx(50)
    assert sum(getattr(memory, name).value for name in PART_NAMES) == memory.total.value


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
