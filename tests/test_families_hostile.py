"""Configs of strangers: with any one value changed, a model is counted or refused, and soon."""

import contextlib
import copy
import time
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.errors import KvPlannerError
from kvcore.model.config import ModelConfig
from tests.special_models import FACTS, weigh
from tests.test_families_decoder import FACTS as DECODERS

CONFIGS = [fact["config"] for fact in (*FACTS, *DECODERS) if "config" in fact]

VALUES = st.sampled_from(
    [None, 0, -1, 1, 3, 7, 10**6, 10**30, 2.5, "", "x", [], [1], ["a"], [[]], [None], {}, {"a": 1}, True]
)


def paths(values: dict, start: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of a config and of the objects in it."""
    for key, value in values.items():
        yield (*start, key)
        if isinstance(value, dict):
            yield from paths(value, (*start, key))


CASES = [(number, path) for number, config in enumerate(CONFIGS) for path in paths(config)]


class TestOneValueChanged:
    @settings(max_examples=400, deadline=None)
    @given(st.sampled_from(CASES), VALUES)
    def test_a_model_is_counted_or_refused(self, case, value):
        number, path = case
        config = copy.deepcopy(CONFIGS[number])
        section = config
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = value
        started = time.process_time()
        with contextlib.suppress(KvPlannerError):
            assert weigh(ModelConfig.from_mapping(config), tensor_parallel_size=2).total >= 0
        assert time.process_time() - started < 5
