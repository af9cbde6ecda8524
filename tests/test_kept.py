"""Results are cached with the model they are about, no longer than it lives, and bounded in bytes."""

import gc
import json
import re
import weakref
from collections.abc import Iterator

import pytest

from kvcore.advice.fixes import fixes
from kvcore.base.kept import LEDGER, MAX_RESULTS, RESULT_BYTES, Keeper, Ledger, bounded, kept, size_of
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, plan
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request
from tests.test_families_decoder import LLAMA


class Thing(Keeper):
    pass


class TestKept:
    def test_results_go_with_their_object(self):
        ledger, thing = Ledger(), Thing()
        ledger.keep(thing, "a", "x" * 10_000)
        assert 10_000 < ledger.bytes < 11_000
        del thing
        assert ledger.bytes == 0

    def test_results_go_with_every_object_they_depend_on(self):
        calls = []

        @kept
        def asked(owner: Thing, other: Thing) -> list[int]:
            calls.append(1)
            return [1]

        owner, other = Thing(), Thing()
        assert asked(owner, other) is asked(owner, other)
        assert len(owner._kept) == 1
        del other
        assert len(owner._kept) == 0
        asked(owner, Thing())
        assert len(calls) == 2

    def test_all_bytes_together_are_bounded_and_the_oldest_results_go_first(self):
        ledger = Ledger(most_bytes=50_000)
        things = [Thing() for _ in range(20)]
        for thing in things:
            ledger.keep(thing, "a", "x" * 10_000)
            assert ledger.bytes <= 50_000
        assert [len(thing._kept) for thing in things] == [0] * 16 + [1] * 4

    def test_a_result_larger_than_the_bound_is_not_cached(self):
        ledger, thing = Ledger(most_bytes=1000), Thing()
        ledger.keep(thing, "a", "x" * 10_000)
        assert ledger.bytes == 0

    def test_the_results_of_one_object_are_bounded_in_number(self):
        ledger, thing = Ledger(), Thing()
        for number in range(3 * MAX_RESULTS):
            ledger.keep(thing, number, None)
        assert len(thing._kept) <= MAX_RESULTS
        assert ledger.bytes <= MAX_RESULTS * (RESULT_BYTES + size_of(None))

    def test_exceptions_are_not_cached(self):
        @kept
        def asked(owner: Thing) -> None:
            raise ValueError("not cached")

        thing = Thing()
        for _ in range(2):
            with pytest.raises(ValueError, match="not cached"):
                asked(thing)

    def test_equal_objects_do_not_share(self):
        raw = {**LLAMA, "vocab_size": 777}
        first, second = ModelConfig.from_mapping(raw), ModelConfig.from_mapping(raw)
        assert first == second
        assert read_architecture(first) is read_architecture(first)
        assert read_architecture(first) is not read_architecture(second)


class TestBounded:
    def test_the_least_recently_used_results_go_beyond_the_bound(self):
        calls = []

        @bounded(20_000)
        def text(number: int) -> str:
            calls.append(number)
            return str(number) * 5_000

        for number in (1, 2, 3, 4, 4, 1):
            text(number)
        assert calls == [1, 2, 3, 4, 1]


class TestSizes:
    def test_an_object_referred_to_twice_counts_once(self):
        text = "x" * 10_000
        assert size_of([text, text]) < 2 * size_of(text)

    def test_the_closure_of_a_function_counts(self):
        text = "x" * 10_000

        def inner() -> str:
            return text

        assert size_of(inner) > 10_000


MARK = "of-a-visitor"
GROUPS = {
    "all": {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    }
}


def upload(number: int) -> dict:
    """A config with `number` in every list, so that its sizes differ from all others."""
    layers = 16
    names = [
        f"model.layers.{layer}.{MARK}-{number}.{index}" for layer in range(layers) for index in range(60)
    ]
    return {
        **LLAMA,
        "architectures": ["LlamaForCausalLM", f"{MARK}-{number}"],
        "num_hidden_layers": layers,
        "vocab_size": 1000 + number,
        MARK: "x" * 100_000,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": GROUPS,
            "ignore": [*names, f"re:.*{MARK}.*{number}"],
        },
    }


def use(number: int) -> weakref.ref[ModelConfig]:
    """Plans an upload, asks for fixes and writes a link, as a visit does."""
    scenario = scenario_from_request(
        {
            "model": f"{MARK}/{number}",
            "config": upload(number),
            "accelerator": {"memory_gib": 40 + number / 10, "name": f"{MARK} {number}"},
            "speculative_config": {
                "method": "draft_model",
                "num_speculative_tokens": 2,
                "model": f"{MARK}-draft",
                "config": {**LLAMA, MARK: number, "num_hidden_layers": 2, "vocab_size": 1000 + number},
            },
        }
    )
    result = plan(scenario)
    assert isinstance(result, Plan)
    assert fixes(result) is not None
    assert link.encode(scenario)
    return weakref.ref(scenario.config)


def texts_that_are_reachable() -> Iterator[str]:
    """Texts in every object known to the garbage collector: containers, instances, closures."""
    for thing in gc.get_objects():
        if thing is not globals():
            yield from (text for text in gc.get_referents(thing) if type(text) is str)


class TestUploads:
    def test_nothing_of_an_upload_is_left_after_its_session(self):
        gc.collect()
        before = LEDGER.bytes
        references = [use(number) for number in range(3)]
        gc.collect()
        assert [reference() for reference in references] == [None] * 3
        assert LEDGER.bytes - before < 2 << 20
        own = re.compile(MARK + "[-/ ][0-9]")
        assert {text[:80] for text in texts_that_are_reachable() if own.search(text)} == set()

    def test_results_of_many_large_uploads_stay_within_the_bound(self):
        sessions = []
        for number in range(12):
            config = ModelConfig.from_mapping(json.loads(json.dumps(upload(number))))
            sessions.append(config)
            read_architecture(config)
            assert LEDGER.bytes <= LEDGER.most_bytes
        held = LEDGER.bytes
        del sessions, config
        gc.collect()
        assert LEDGER.bytes < held
