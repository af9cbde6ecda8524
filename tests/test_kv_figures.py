"""Every figure of a KV plan says the formula of the rule that ran; table, steps and JSON render that object."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any, Final

import pytest
from msgspec.structs import replace

from kvcore.base.quantity import Grade, Quantity, Unit
from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.cache.capacity import plan_cache
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.contract.result import result_of
from kvcore.course import derivation
from kvcore.explain.numbers import quantities
from kvcore.planning import Plan, plan
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request
from tests import test_cache_vectors as vectors
from tests.cache_examples import flags, full
from tests.derivation_plans import REQUESTS
from tests.formulas import evaluated

EN = words(Language.ENGLISH)
H100: Final = {"accelerator": "H100-80GB", "max_model_len": 8192}
MORE: Final[dict[str, dict[str, Any]]] = {
    "a stage without a cache": {
        "model": "google/gemma-4-E2B-it", **H100, "engine_version": "0.19.0", "pipeline_parallel_size": 2,
    },
    "gpt-oss": {"model": "openai/gpt-oss-120b", **H100, "tensor_parallel_size": 2},
    "hybrid, old release": {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", **H100, "tensor_parallel_size": 4, "engine_version": "0.11.0",
    },
    "latent, context parallel, small": {
        "model": "deepseek-ai/DeepSeek-V2-Lite", **H100, "tensor_parallel_size": 2, "decode_context_parallel_size": 2,
    },
    "windows of other releases": {"model": "google/gemma-3-27b-it", **H100, "engine_version": "0.9.2"},
    "windows over stages": {
        "model": "google/gemma-3-27b-it", **H100, "pipeline_parallel_size": 4, "engine_version": "0.17.1",
    },
    "checkpointed states": {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", **H100, "tensor_parallel_size": 4, "mamba_cache_mode": "align",
    },
    "small": {"model": "Qwen/Qwen3-8B", **H100},
    "odd length": {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 1001},
    "keeps nothing": {"model": "Alibaba-NLP/gte-Qwen2-7B-instruct", "accelerator": "H100-80GB"},
}  # fmt: skip
ALL: Final = REQUESTS | MORE
NAMES: Final = (
    "bytes_per_block", "blocks", "pool", "blocks_per_request", "tokens", "concurrency", "bytes_per_token",
    "request_fixed", "needed", "longest",
)  # fmt: skip


@cache
def planned(kind: str) -> Plan:
    return plan(scenario_from_request(ALL[kind]))


def figures_of(base: Plan) -> dict[str, Quantity]:
    assert base.cache is not None
    return {name: getattr(base.cache.figures, name) for name in NAMES}


def tree(figure: Quantity) -> list[Quantity]:
    """The figure and what it is made of, as far as the KV memory, which other tests look at."""
    if figure.name == "available_kv":
        return []
    return [figure, *(one for part in figure.inputs for one in tree(part))]


def check(figure: Quantity) -> None:
    """Every formula in the tree gives the value that it explains; the longest length is searched for, not computed."""
    for one in tree(figure):
        if one.formula and "ℓ" not in one.formula:
            assert math.isclose(evaluated(one), one.value, rel_tol=1e-12, abs_tol=1e-9), one


PLANNED: Final = [kind for kind in ALL if kind not in ("too big", "no card")]


@pytest.mark.parametrize("kind", PLANNED)
def test_every_formula_gives_its_value(kind: str) -> None:
    base = planned(kind)
    assert base.cache is not None
    for name, figure in figures_of(base).items():
        check(figure)
        assert figure.source, name
        assert figure.formula or not base.cache.groups, name


@pytest.mark.parametrize(
    ("version", "vector"),
    [run for run in vectors.RUNS if "refused" not in run[1]],
    ids=lambda part: str(part)[:12],
)
def test_every_formula_gives_what_every_release_planned(version: str, vector: dict[str, Any]) -> None:
    cache = plan_cache(*vectors.inputs(vectors.CASES[vector["case"]], version))
    for name in NAMES:
        check(getattr(cache.figures, name))
    figures = cache.figures
    assert (figures.blocks.value, figures.tokens.value) == (cache.num_blocks, cache.tokens)
    assert (figures.needed.value, figures.longest.value) == (cache.needed_bytes, cache.longest_request_tokens)
    assert (figures.concurrency.value, figures.bytes_per_block.value) == (
        cache.max_concurrency,
        cache.bytes_per_block,
    )
    assert figures.request_fixed.value == cache.request_fixed_bytes
    # One token in layers is exact, blocks divided by their tokens have a last digit.
    assert math.isclose(figures.bytes_per_token.value, cache.bytes_per_token, rel_tol=1e-12)


@pytest.mark.parametrize("kind", PLANNED)
def test_table_steps_and_json_render_the_same_object(kind: str) -> None:
    base = planned(kind)
    figures = figures_of(base)
    table = {quantity.name: quantity for _, quantity in quantities(base, EN)}
    for name, figure in figures.items():
        assert table[figure.name] is figure or name == "pool"
    assert table["kv_cache"].formula == figures["pool"].formula
    shown = {one.name: one for step in derivation(base, EN) for one in step.content.equations}
    for figure in figures.values():
        if figure.name in shown:
            one = shown[figure.name]
            assert (one.value, one.grade, one.source) == (figure.value, figure.grade, figure.source)
            assert bool(one.substituted) == bool(figure.inputs)
    answer = json.loads(json.dumps(result_of(base)))["kv"]
    fields = {
        "num_blocks": "blocks", "tokens": "tokens", "max_concurrency": "concurrency",
        "bytes_per_token": "bytes_per_token", "request_fixed_bytes": "request_fixed",
        "longest_request_tokens": "longest",
    }  # fmt: skip
    expected = {field: figures[name].value for field, name in fields.items()}
    if kind == "keeps nothing":
        expected["max_concurrency"] = None  # docs/contract.md: it holds neither one request nor none
    assert {field: answer[field] for field in fields} == expected


@pytest.mark.parametrize(
    "kind", ["dense", "windows", "hybrid", "latent, context parallel", "pipeline", "sparse"]
)
def test_the_longest_length_is_the_last_that_is_planned_to_fit(kind: str) -> None:
    base = planned(kind)
    assert base.cache is not None
    longest = int(base.cache.figures.longest.value)
    limit = max(base.resolved.max_model_len, base.resolved.derived_max_model_len)
    available = tuple(int(one.value) for one in base.stage_kv)

    def fits(length: int) -> bool:
        resolved = replace(base.resolved, max_model_len=length)
        return plan_cache(base.specs, available, resolved, base.scenario.parallel).fits

    assert fits(longest)
    assert longest == limit or not fits(longest + 1)


def test_a_figure_is_known_as_well_as_the_memory_it_is_cut_from() -> None:
    figures = planned("small").cache.figures
    assert figures.blocks.grade is planned("small").memory.available_kv.grade is Grade.FITTED
    assert figures.tokens.grade is figures.concurrency.grade is Grade.FITTED
    assert figures.bytes_per_token.grade is figures.needed.grade is Grade.EXACT
    assert planned("given blocks").cache.figures.blocks.grade is Grade.EXACT


def formula(kind: str, name: str) -> str:
    return getattr(planned(kind).cache.figures, name).formula


def test_each_kind_has_its_own_rule() -> None:
    assert formula("dense", "tokens") == "⌊blocks / blocks_per_request × max_model_len⌋"
    assert formula("V0", "tokens") == "blocks × block_size"
    assert formula("windows of other releases", "tokens") == "⌊blocks / group_count⌋ × block_size"
    assert formula("V0", "concurrency") == "blocks × block_size / max_model_len"
    assert formula("windows", "blocks_per_request") == "fixed_groups × window_blocks + growing_blocks"
    assert formula("gpt-oss", "bytes_per_token") == "2 × group_layers × kv_heads × head_dim × element_bytes"
    assert formula("latent", "bytes_per_token") == "layers × (latent_rank + rope_dim) × element_bytes"
    assert formula("latent, context parallel, small", "bytes_per_token").endswith(" / context_ranks")
    assert formula("latent, context parallel, small", "blocks_per_request") == (
        "⌈⌈max_model_len / context_ranks⌉ / block_size⌉"
    )
    assert (
        formula("sparse", "bytes_per_block") == "layers_1 × page_size_bytes_1 + layers_2 × page_size_bytes_2"
    )
    assert formula("hybrid", "request_fixed") == "fixed_groups × state_blocks × bytes_per_block"
    assert formula("pipeline", "blocks").startswith("min(stage_blocks_1, ")
    assert formula("given blocks", "blocks") == "num_gpu_blocks_override"
    assert formula("given bytes", "blocks") == "⌊available_kv / bytes_per_block⌋"


def test_layers_that_look_at_an_encoder_keep_its_tokens() -> None:
    specs = (full(32), LayerSpec(kind=CacheKind.CROSS_ATTENTION, layers=32, block_size=16, page_size_bytes=65_536,
                                 encoder_tokens=1500))  # fmt: skip
    figures = plan_cache((specs,), (20 * GIB,), flags("0.10.2", max_model_len=448), Parallel()).figures
    (encoder,) = figures.bounded_blocks
    assert encoder.substituted == "⌈1,500 / 16⌉"
    assert figures.blocks_per_request.value == 28 + 94
    for name in NAMES:
        check(getattr(figures, name))


def test_padding_is_part_of_a_page() -> None:
    made = Quantity(name="layer_state_bytes", value=40_000, unit=Unit.BYTES)
    state = LayerSpec(kind=CacheKind.MAMBA, layers=2, block_size=8192, page_size_bytes=65_536, made_of=made)
    figures = plan_cache(((state, full(1)),), (GIB,), flags(), Parallel()).figures
    pages = [one for one in figures.bytes_per_block.walk() if one.name.startswith("page_size_bytes")]
    assert figures.bytes_per_block.value in (65_536, 2 * 65_536)
    for page in pages:
        check(page)


def test_stages_that_are_alike_count_once() -> None:
    stages = ((full(20),), (full(20),), (full(16),))
    parallel = Parallel(pipeline_parallel_size=3)
    figures = plan_cache(stages, (4 * GIB, 4 * GIB, 5 * GIB), flags(), parallel).figures
    # 20 × 65,536 bytes a block: ⌊4 GiB / 1,310,720⌋ = 3276; 16 × 65,536: 5120.
    assert [one.value for one in figures.blocks.inputs] == [3276, 5120]
    assert figures.blocks.value == 3276
