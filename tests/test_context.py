"""Lengths a config allows, by engine version."""

import pytest
from packaging.version import Version

from kvcore.errors import ModelError
from kvcore.model.config import Section
from kvcore.model.context import default_max_model_len, derived_max_model_len, read_context_limits

V0_11, V0_28, V0_32 = Version("0.11.0"), Version("0.28.0"), Version("0.32.0")


def derived(raw: dict, version: Version = V0_32, model_type: str = "llama") -> int:
    return derived_max_model_len(read_context_limits(Section(raw), model_type), version)


def default(raw: dict, version: Version = V0_32) -> int:
    return default_max_model_len(read_context_limits(Section(raw), "phi3"), version)


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 65536}, 65536),
        ({"max_position_embeddings": 32768, "seq_length": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({}, 2048),
    ],
)
def test_the_smallest_key_counts_and_model_max_length_wins(raw, tokens):
    assert derived(raw) == tokens


@pytest.mark.parametrize(
    ("scaling", "before", "since"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 16384, 16384),
        ({"type": "dynamic", "factor": 2.0}, 8192, 8192),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024}, 4096, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384, 4096),
        ({"rope_type": "yarn", "factor": 4.0}, 16384, 4096),
        ({"type": "mrope", "mrope_section": [1, 2, 3]}, 4096, 4096),
        ({"rope_type": "default"}, 4096, 4096),
    ],
)
def test_scaling_before_and_since_0_30(scaling, before, since):
    raw = {"max_position_embeddings": 4096, "rope_scaling": scaling}
    assert (derived(raw, V0_28), derived(raw, V0_32)) == (before, since)


def test_both_spellings_of_a_scaling_mean_the_same():
    old = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    assert derived(old) == derived(new) == 8192


def test_gemma3_is_scaled_already():
    raw = {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert derived(raw, model_type="gemma3") == 131072


def test_a_longrope_model_starts_at_its_original_length_since_0_11_2():
    raw = {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]},
    }
    assert (default(raw, V0_11), default(raw, Version("0.11.2")), default(raw, V0_32)) == (131072, 4096, 4096)
    assert derived(raw) == 131072


@pytest.mark.parametrize("factor", [0, -1, "x", float("nan"), 1e9])
def test_an_unusable_factor_is_refused(factor):
    with pytest.raises(ModelError) as caught:
        derived({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": factor}})
    assert caught.value.code == "invalid-config-value"


def test_a_scaling_without_its_factor_is_refused():
    with pytest.raises(ModelError) as caught:
        derived({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear"}})
    assert (caught.value.code, caught.value.field) == ("missing-config-key", "config.rope_scaling.factor")


def test_a_factor_that_leaves_no_token_is_refused():
    with pytest.raises(ModelError) as caught:
        derived({"max_position_embeddings": 512, "rope_scaling": {"type": "dynamic", "factor": 1e-9}})
    assert (caught.value.code, caught.value.field) == ("invalid-config-value", "config.rope_scaling.factor")
