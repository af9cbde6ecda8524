"""The moving pictures of lesson 0: for every kind of model, in both languages, with the plan's own numbers."""

from __future__ import annotations

import re

import pytest

from kvcore.base.numbers import count, format_bytes, whole_requests
from kvcore.base.words import Language, words
from kvcore.charts.drawings import layers_picture, reuse_picture, sharing_picture
from kvcore.charts.drawings.layers_picture import layer_rows
from kvcore.charts.drawings.reuse_picture import computed_with_cache, computed_without_cache
from kvcore.charts.drawings.sharing_picture import seats
from tests.derivation_plans import KINDS, planned

T = words(Language.ENGLISH)


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("kind", KINDS)
def test_each_scene_says_something_new_and_is_said_in_words(kind: str, language: Language) -> None:
    t = words(language)
    for picture in (layers_picture, reuse_picture, sharing_picture):
        scenes = picture(planned(kind), t).scenes
        captions = [scene.caption for scene in scenes]
        assert len(set(captions)) == len(captions)
        assert all(scene.drawing.alternative for scene in scenes)
        assert not any(re.search(r"\{\w+\}", text) for text in captions)


def test_what_is_computed_is_counted_by_hand() -> None:
    """Five of prompt, four of answer. Without a cache 5 + 6 + 7 + 8; with one 5, then one a step for three steps."""
    assert computed_without_cache(5, 4) == 26
    assert computed_with_cache(5, 4) == 8
    drawn = reuse_picture(planned("dense"), T).scenes[4].drawing.html
    assert "computed so far: 26" in drawn
    assert "computed so far: 8" in drawn
    # The squares of both lanes: 26 computed on the left; on the right 8, and 5 + 6 + 7 read.
    assert drawn.count('<i class="kv-worked') == 26 + 8
    assert drawn.count('<i class="kv-from-cache') == 18


def test_the_last_scenes_say_the_numbers_of_the_plan() -> None:
    base = planned("dense")
    assert base.cache is not None
    first, _, third = (
        picture(base, T).scenes for picture in (layers_picture, reuse_picture, sharing_picture)
    )
    assert format_bytes(base.cache.bytes_per_token) in first[-1].caption
    assert count(whole_requests(base.cache.max_concurrency)) in third[-1].caption
    assert count(base.cache.tokens) in third[0].caption


def test_layers_of_every_kind_are_drawn() -> None:
    assert {row.keeps for row in layer_rows(planned("hybrid"))} == {"state", "pair"}
    assert {row.keeps for row in layer_rows(planned("windows"))} == {"window", "pair"}
    assert {row.keeps for row in layer_rows(planned("chunks"))} == {"chunk", "pair"}
    assert {row.keeps for row in layer_rows(planned("latent"))} == {"latent"}
    assert {row.keeps for row in layer_rows(planned("recurrent"))} == {"state"}


@pytest.mark.parametrize("concurrency", [1.0, 1.95, 3.64, 4.0, 7.99, 37.17, 3063.0])
def test_the_one_that_waits_does_not_fit_and_those_that_run_do(concurrency: float) -> None:
    pool = seats(concurrency)
    assert 1 <= pool.whole <= 4
    assert pool.whole <= pool.room + 1e-9
    assert pool.whole + pool.prompt > pool.room - 0.01


def test_the_picture_of_a_pool_in_use_adds_up() -> None:
    for scene in sharing_picture(planned("dense"), T).scenes:
        shares = [float(share) for share in re.findall(r"--share:([\d.]+)", scene.drawing.html)]
        assert sum(shares) == pytest.approx(1, abs=1e-3)


def test_a_request_longer_than_the_pool_fills_it_and_does_not_run() -> None:
    scenes = sharing_picture(planned("too long"), T).scenes
    assert "does not run" in scenes[-1].caption
