"""Models whose layers are not all alike, exact against vLLM's own classes, logs, and published counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.special_models import cache_layers, config_of, facts_with, gib_of_log, parameters_per_rank, read
from tests.test_families_decoder import total_elements

Fact = dict[str, Any]


@pytest.mark.parametrize("fact", facts_with("weights_bytes_per_rank"))
def test_weights_are_exact_to_the_byte(fact: Fact) -> None:
    for ranks, expected in fact["weights_bytes_per_rank"].items():
        assert parameters_per_rank(config_of(fact), int(ranks)) == expected


@pytest.mark.parametrize("fact", facts_with("cache_layers"))
def test_cache_layers_by_kind(fact: Fact) -> None:
    assert cache_layers(read(fact)) == fact["cache_layers"]


@pytest.mark.parametrize("fact", facts_with("logged"))
def test_figures_as_logs_print_them(fact: Fact) -> None:
    for logged in fact["logged"]:
        assert gib_of_log(fact, logged) == pytest.approx(logged["gib"], rel=0.003)


@pytest.mark.parametrize("fact", facts_with("parameters"))
def test_parameters_are_the_published_total(fact: Fact) -> None:
    assert total_elements(read(fact)) == fact["parameters"]


@pytest.mark.parametrize("fact", facts_with("parameters_billions"))
def test_parameters_round_to_the_published_total(fact: Fact) -> None:
    published = fact["parameters_billions"]
    digits = len(str(published).partition(".")[2])
    assert round(total_elements(read(fact)) / 1e9, digits) == published
