"""DeepSeek-V4.1: its published size, what each layer keeps, pages by hand, and where its tables of n-grams are."""

from __future__ import annotations

from collections import Counter

from kvcore.cache.spec import CacheKind
from kvcore.cache.states import rank_layer_specs
from kvcore.catalogue import find_model
from kvcore.model import architecture as arch
from kvcore.model.caches import CompressedLatent, LatentWindow, TokenRing
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests.test_families_decoder import total_elements

FLASH = "deepseek-ai/DeepSeek-V4.1-Flash"
PUBLISHED = 763_205_315_794
"""Values of all tensors, the tables' in it and their scales not: the safetensors total of the repository."""


def planned(**fields: object) -> Plan:
    asked = {
        "model": FLASH,
        "accelerator": "B200-180GB",
        "tensor_parallel_size": 4,
        "engine_version": "0.33.0",
    }
    return plan(scenario_from_request(asked | fields))


def test_all_published_values_come_out() -> None:
    architecture = read_architecture(find_model(FLASH).config)
    spark = architecture.spark
    assert spark is not None
    stages = [*spark.modules, *(module for layer in spark.layers for module in layer.modules)]
    rows = 384_006_168 + 384_016_682
    assert total_elements(architecture) + sum(map(arch.elements, stages)) + rows * 256 == PUBLISHED


def test_caches_are_in_source_layers_alone() -> None:
    layers = read_architecture(find_model(FLASH).config).layers
    kept = {index: len(layer.caches) for index, layer in enumerate(layers) if len(layer.caches) > 1}
    assert kept == {2: 4, 8: 4, 14: 4, 20: 3}
    kinds = Counter(type(cache) for layer in layers for cache in layer.caches)
    assert kinds == {LatentWindow: 40, CompressedLatent: 8, TokenRing: 3}


def test_pages_on_blackwell_have_records_of_528_bytes() -> None:
    """Blocks of 128 tokens, pages in steps of 512 bytes; keys of an indexer have 132 bytes, a window 32 records."""
    found = planned(language_model_only=True)
    assert found.resolved.block_size == 128
    specs = rank_layer_specs(found.architecture, found.scenario.parallel, found.resolved, 0)
    assert {(spec.kind, spec.page_size_bytes): spec.layers for spec in specs} == {
        (CacheKind.SLIDING_WINDOW_MLA, 32 * 528): 40,
        (CacheKind.MLA_ATTENTION, 64 * 528): 3,
        (CacheKind.MLA_ATTENTION, 17 * 512): 3,
        (CacheKind.CIRCULAR_BUFFER, 8 * 2 * 512 * 4): 3,
        (CacheKind.MLA_ATTENTION, 128 * 528): 1,
        (CacheKind.MLA_ATTENTION, 128 * 132): 1,
    }


def test_pages_on_hopper_have_records_of_584_bytes() -> None:
    """Blocks of 64 tokens, pages in steps of 576 bytes."""
    found = planned(accelerator="H200-141GB", language_model_only=True)
    specs = rank_layer_specs(found.architecture, found.scenario.parallel, found.resolved, 0)
    pages = {spec.page_size_bytes for spec in specs if spec.kind is not CacheKind.CIRCULAR_BUFFER}
    assert found.resolved.block_size == 64
    assert pages == {33 * 576, 65 * 576, 8 * 576, 15 * 576}


def test_weights_on_the_cards_are_about_320_gb_of_a_checkpoint_of_510() -> None:
    """As public threads give them, for tensor parallel size 4; the tables stay in the host's memory."""
    found = planned(enable_expert_parallel=True, speculative_config={"method": "dspark"})
    assert 305 < 4 * found.weights.total / 1e9 < 325


def test_the_checkpoint_drafts_by_dspark_alone() -> None:
    with_draft = planned(speculative_config={"method": "dspark"})
    assert with_draft.resolved.num_speculative_tokens == 5
    assert with_draft.weights.drafts > 0
