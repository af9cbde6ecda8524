"""Which layers share a block table, by version; worked out by hand from the planner's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.quantity import Quantity, Unit
from kvcore.cache.groups import Grouping, StageSpecs, group_layers
from kvcore.cache.rules import planner_rules
from kvcore.cache.spec import CacheKind, LayerSpec
from tests.cache_examples import full, latent, recurrent, window


def grouped(stages: StageSpecs, version: str = "0.33.0", *, hybrid_manager: bool = True) -> Grouping:
    return group_layers(stages, planner_rules(Version(version)), hybrid_manager)


def layers(grouping: Grouping, stage: int = 0) -> list[int]:
    return [group.layers for group in grouping.stages[stage]]


def test_equal_layers_are_one_group() -> None:
    grouping = grouped(((full(16), full(16)),))
    assert layers(grouping) == [32]
    assert grouping.bytes_per_block == (32 * 65_536,)


def test_pages_of_one_kind_add_up_in_one_group() -> None:
    grouping = grouped(((latent(61), latent(61, page=8448, dtype="uint8")),))
    assert layers(grouping) == [122]
    assert grouping.bytes_per_block == (61 * (73_728 + 8448),)
    with pytest.raises(EngineRefusalError, match="not divisible"):
        grouped(((latent(61), latent(61, page=8448, dtype="uint8")),), "0.10.2")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.11.2", [12, 7, 6]), ("0.12.0", [12, 13]), ("0.33.0", [12, 13])],
)
def test_nearly_equal_buckets_are_padded_not_cut(version: str, expected: list[int]) -> None:
    assert layers(grouped(((window(12, 128), full(13)),), version)) == expected


@pytest.mark.parametrize(("version", "expected"), [("0.17.1", [10, 7, 7]), ("0.18.1", [10, 14])])
def test_the_slack_grew_to_half(version: str, expected: list[int]) -> None:
    assert layers(grouped(((full(10), window(14, 128)),), version)) == expected


def test_smaller_pages_get_larger_blocks() -> None:
    grouping = grouped(((window(25, 1024, page=65_536), full(5, page=32_768)),))
    assert [(g.kind.value, g.block_size, g.page_size_bytes) for g in grouping.whole[-2:]] == [
        ("sliding_window", 16, 65_536),
        ("full_attention", 32, 65_536),
    ]
    with pytest.raises(EngineRefusalError):
        grouped(((window(25, 1024, page=65_536), full(5, page=32_768)),), "0.11.2")


@pytest.mark.parametrize(("version", "padded"), [("0.25.1", False), ("0.26.0", True)])
def test_states_are_padded_to_the_largest_page_from_0_26(version: str, padded: bool) -> None:
    stages = ((recurrent(12, page=50_000, block_size=16), full(12)),)
    if not padded:
        with pytest.raises(EngineRefusalError):
            grouped(stages, version)
        return
    assert {group.page_size_bytes for group in grouped(stages, version).whole} == {65_536}


@pytest.mark.parametrize(("version", "padded"), [("0.28.0", False), ("0.29.0", True)])
def test_attention_is_padded_from_0_29(version: str, padded: bool) -> None:
    stages = ((window(12, 128, page=50_000), full(12)),)
    if not padded:
        with pytest.raises(EngineRefusalError) as refusal:
            grouped(stages, version)
        assert refusal.value.code == "cache-pages-not-unifiable"
        return
    assert grouped(stages, version).bytes_per_block == (12 * 65_536,)


@pytest.mark.parametrize(("version", "allocated"), [("0.26.0", False), ("0.28.0", True)])
def test_windows_beside_latent_vectors_are_allocated_in_full_from_0_27(version: str, allocated: bool) -> None:
    stages = ((latent(27, page=18_432, block_size=16), window(3, 4096, page=50_000)),)
    if not allocated:
        with pytest.raises(EngineRefusalError):
            grouped(stages, version)
        return
    grouping = grouped(stages, version)
    assert layers(grouping) == [30]
    assert grouping.bytes_per_block == (27 * 18_432 + 3 * 50_000,)


@pytest.mark.parametrize("version", ["0.9.2", "0.19.1", "0.33.0"])
def test_without_the_hybrid_manager_windows_become_full_attention(version: str) -> None:
    grouping = grouped(((window(36, 1024), full(12)),), version, hybrid_manager=False)
    assert [(group.kind, group.layers) for group in grouping.whole] == [(CacheKind.FULL_ATTENTION, 48)]
    alone = grouped(((window(36, 1024),),), version, hybrid_manager=False)
    assert [group.kind for group in alone.whole] == [CacheKind.SLIDING_WINDOW]


def test_without_the_hybrid_manager_states_cannot_be_unified() -> None:
    stages = ((recurrent(36, page=65_536, block_size=16), full(12)),)
    with pytest.raises(EngineRefusalError, match="Hybrid KV cache manager is disabled"):
        grouped(stages, hybrid_manager=False)


def test_stages_have_their_share_of_global_groups() -> None:
    stage: tuple[LayerSpec, ...] = (window(26, 1024), full(5))
    grouping = grouped((stage, stage))
    assert layers(grouping, 0) == [5, 5, 4, 4, 4, 4, 5]
    assert layers(grouping, 1) == [4, 4, 5, 5, 4, 4, 5]
    assert [group.layers for group in grouping.whole] == [9, 9, 9, 9, 8, 8, 10]


def test_before_0_11_each_worker_groups_for_itself_in_slices() -> None:
    grouping = grouped(((window(26, 1024), full(5)), (window(9, 1024), full(2))), "0.10.2")
    assert layers(grouping, 0) == [5, 5, 5, 5, 5, 5, 1]
    assert layers(grouping, 1) == [2, 2, 2, 2, 2, 1]


def test_no_specs_no_groups() -> None:
    assert grouped(((), ())).whole == ()


def test_groups_of_the_same_sizes_keep_what_their_own_pages_are_made_of() -> None:
    for name in ("layer_token_bytes", "latent_bytes"):
        made = Quantity(name=name, value=4096, unit=Unit.BYTES)
        (group,) = grouped(((replace(full(32), made_of=made),),)).whole
        assert [member.made_of for member in group.members] == [made]
