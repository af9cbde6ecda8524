"""Every reader of a stranger's bytes: what the fuzzer found and kept, and what hypothesis makes, answered or refused.

`make fuzz` runs a million inputs guided by coverage, and keeps what it finds here: `tests/data/fuzz`.
"""

import json
import os
import random
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.fuzz import mutation, seeds
from tools.fuzz.__main__ import TARGETS
from tools.fuzz.targets import TARGETS as RUN

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
MAX_CPU_SECONDS = 2.0
KEPT = [
    pytest.param(path.parent.name, path, id=f"{path.parent.parent.name}-{path.parent.name}-{path.name[:16]}")
    for path in sorted(seeds.KEPT.glob("*/*/*"))
]
WORDS = mutation.vocabulary_of([*seeds.configs()[::4], *seeds.requests()])

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def _without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run(target: str, data: bytes) -> None:
    """Answered, or refused by code, at a bounded cost: at the second try where the first filled caches."""
    for is_last in (False, True):
        start = time.process_time()
        RUN[target](data)
        if time.process_time() - start < MAX_CPU_SECONDS:
            return
        assert not is_last, f"{target} takes more than {MAX_CPU_SECONDS} s of CPU"


def test_every_target_has_seeds() -> None:
    assert set(TARGETS) == set(RUN)
    assert all(seeds.seeds_of(target) for target in TARGETS)


@pytest.mark.parametrize(("target", "path"), KEPT)
def test_saved_inputs_raise_only_coded_errors(target: str, path: Path) -> None:
    run(target, path.read_bytes())


@fuzz
@given(st.sampled_from(["config", "contract", "request"]), st.integers(0), st.data())
def test_changed_json_raises_only_coded_errors(target: str, seed: int, data: st.DataObject) -> None:
    given_ = data.draw(st.sampled_from(seeds.seeds_of(target)))
    run(target, mutation.mutated_json(given_, random.Random(seed), WORDS))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(mutation.WORDS),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS).map(lambda pair: pair[0]), inner)
    ),
    max_leaves=12,
)


@fuzz
@given(st.sampled_from(["config", "contract", "request"]), json_values)
def test_any_json_raises_only_coded_errors(target: str, value: object) -> None:
    run(target, json.dumps(value).encode())


@fuzz
@given(
    st.dictionaries(
        st.sampled_from(WORDS).map(lambda pair: pair[0]) | st.text(max_size=8), st.text(max_size=20)
    )
)
def test_any_link_raises_only_coded_errors(params: dict[str, str]) -> None:
    run("link", urlencode(params, errors="replace").encode())


@fuzz
@given(
    st.sampled_from(["link", "start_up_log", "request_log", "command", "deployed"]), st.integers(0), st.data()
)
def test_changed_text_raises_only_coded_errors(target: str, seed: int, data: st.DataObject) -> None:
    given_ = seeds.seeds_of(target)
    run(target, mutation.mutated_text(data.draw(st.sampled_from(given_)), random.Random(seed), given_))


@fuzz
@given(st.sampled_from(TARGETS), st.binary(max_size=400))
def test_any_bytes_raise_only_coded_errors(target: str, data: bytes) -> None:
    run(target, data)
