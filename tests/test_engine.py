"""Layers over pipeline stages, sizes over tensor parallel ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import EngineRefusalError
from kvcore.engine import divided, heads_per_rank, partitioned, stage_layers, units_per_rank
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [
        (32, 2, [16, 16]),
        (33, 2, [17, 16]),
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
    ],
)
def test_the_remainder_goes_to_the_stages_before_the_last(layers, stages, counts):
    assert [
        len(stage_layers(layers, Parallel(pipeline_parallel_size=stages), stage)) for stage in range(stages)
    ] == counts


@given(st.integers(1, 200), st.integers(1, 16))
def test_every_layer_stands_on_one_stage(layers, stages):
    if layers < stages:
        with pytest.raises(EngineRefusalError):
            stage_layers(layers, Parallel(pipeline_parallel_size=stages), 0)
        return
    indices = [
        index
        for stage in range(stages)
        for index in stage_layers(layers, Parallel(pipeline_parallel_size=stages), stage)
    ]
    assert indices == list(range(layers))


def test_what_does_not_divide_is_refused_in_the_engines_words():
    assert divided(12, 4) == 3
    with pytest.raises(EngineRefusalError, match="10 is not divisible by 4"):
        divided(10, 4)
    with pytest.raises(EngineRefusalError) as caught:
        heads_per_rank(40, 16)
    assert str(caught.value) == (
        "Total number of attention heads (40) must be divisible by tensor parallel size (16)."
    )


def test_few_kv_heads_are_replicated_when_the_ranks_are_a_multiple():
    assert units_per_rank(4, 8, replicable=True) == 1
    with pytest.raises(EngineRefusalError):
        units_per_rank(3, 8, replicable=True)
    with pytest.raises(EngineRefusalError):
        units_per_rank(4, 8)


def test_a_model_without_units_has_none_on_any_rank() -> None:
    assert units_per_rank(0, 4, replicable=True) == 0
    assert units_per_rank(0, 4) == 0


@pytest.mark.parametrize(
    ("written", "stages", "code"),
    [
        ("40,24", 2, None),
        (" 24, 40", 2, None),
        ("64", 1, None),
        ("40,24", 1, "layer-partition-of-other-stages"),
        ("40,20,4", 2, "layer-partition-of-other-stages"),
        ("40,25", 2, "layer-partition-of-other-layers"),
        ("40,x", 2, "layer-partition-unreadable"),
        ("40;24", 2, "layer-partition-unreadable"),
        ("", 2, "layer-partition-unreadable"),
        ("64,0", 2, "layer-partition-unreadable"),
        ("70,-6", 2, "layer-partition-unreadable"),
        ("9" * 300, 1, "layer-partition-unreadable"),
    ],
)
def test_the_environment_states_the_layers_of_each_stage(written: str, stages: int, code: str | None) -> None:
    scenario = scenario_from_request(
        {
            "model": "Qwen/Qwen3-32B", "pipeline_parallel_size": stages,
            "env": {"VLLM_PP_LAYER_PARTITION": written},
        }
    )  # fmt: skip
    if code is None:
        stated = partitioned(scenario, 64).parallel
        counts = [len(stage_layers(64, stated, stage)) for stage in range(stages)]
        assert counts == [int(number) for number in written.split(",")]
        return
    with pytest.raises(EngineRefusalError) as caught:
        partitioned(scenario, 64)
    assert (caught.value.code, caught.value.field) == (code, "env.VLLM_PP_LAYER_PARTITION")
