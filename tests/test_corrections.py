"""What the documents get wrong: figures by hand."""

import re

import pytest

from kvcore.explain.corrections import POST_MORTEM, RULE_OF_THUMB, facts, truth
from kvcore.planning import Verdict, plan
from kvcore.scenario import link
from kvcore.texts import CORRECTIONS
from kvcore.texts.words import Language, words
from tests import present_plans

KNOWN = facts(present_plans.fits())


def said(name: str, language: Language = Language.ENGLISH) -> str:
    correction = CORRECTIONS[name]
    return truth(correction, KNOWN, words(language))


def test_the_hidden_size_counts_eight_times_too_much() -> None:
    # 80 × 2 × 8192 × 8192 × 2 bytes = 20 GiB; with 8 heads of 128 instead of 64: 2.5 GiB
    assert "8 times too much" in said("hidden_size")
    assert "takes 2.5 GiB, not 20 GiB" in said("hidden_size")


def test_the_script_prints_the_batch() -> None:
    assert "prints 160 GiB: 20 GiB for each request" in said("batch")


def test_the_last_block() -> None:
    assert round(100 * (16 * 64 - 1000) / (16 * 64), 1) == 2.3
    assert 40 / 64 == 0.625
    assert "62.5 %" in said("last_block")
    assert "2.3 %" in said("last_block")


def test_blocks_are_handed_out() -> None:
    assert "takes 94 blocks" in said("reserve")  # 1,500 / 16


def test_the_model_was_made_for_4096() -> None:
    assert "4,096" in said("model_limit")


def test_latent_attention() -> None:
    # (512 + 64) × 2 bytes × 61 layers = 70,272; 61 × 128 × 128 × 2 = 1,998,848; 2^33 / 70,272
    assert "68.6 KiB per token, not 1,952 KiB" in said("latent")
    assert "122,238 tokens" in said("latent") or "122,237 tokens" in said("latent")


def test_metrics_are_those_of_the_version() -> None:
    assert "vllm:e2e_request_latency_seconds" in said("latency_metric")
    assert "vllm:kv_cache_usage_perc" in said("gpu_alarm")
    old = facts(present_plans.request(engine_version="0.8.5"))
    assert old["gpu_alarm"] == {"metric": "vllm:gpu_cache_usage_perc"}


@pytest.mark.parametrize("language", Language)
def test_every_parameter_is_filled_in(language: Language) -> None:
    for correction in CORRECTIONS.values():
        text = said(correction.name, language)
        assert text
        assert not re.search(r"\{\w+\}", text), text


def test_the_rule_of_thumb_loads_with_its_assumptions() -> None:
    decoded = link.decode({name: str(value) for name, value in RULE_OF_THUMB.items()})
    assert decoded.repairs == ()
    planned = plan(decoded.scenario)
    assert planned.cache is not None
    assert (planned.cache.tokens, planned.cache.max_concurrency) == (163_840, 20.0)


def test_the_post_mortem_loads() -> None:
    decoded = link.decode({name: str(value) for name, value in POST_MORTEM.items()})
    assert decoded.repairs == ()
    planned = plan(decoded.scenario)
    assert planned.resolved.max_model_len == 8192
    assert planned.verdict is Verdict.FITS
