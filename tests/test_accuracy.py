"""The record of published starts: read strictly, current, summed up rightly."""

import json
import math

import pytest

from kvcore.errors import CatalogueError
from kvcore.evidence.accuracy import (
    Check,
    Point,
    elsewhere,
    groups,
    load_accuracy,
    mixed,
    our_points,
    peer_points,
    read_accuracy,
    summarize,
    verdicts,
)
from kvcore.present.accuracy import check_rows, group_rows, peer_rows, percent, scatter
from kvcore.present.text import Language, words
from tools import accuracy as tool

RECORD = load_accuracy()
EN = words(Language.ENGLISH)


def test_the_record_is_what_the_code_predicts_now() -> None:
    assert tool.is_current(tool.OUT.read_text("utf-8")), "run make accuracy"


def test_every_published_start_is_in_it_with_what_it_printed() -> None:
    published = {start["id"]: start for start in tool.lines_of("published.jsonl")}
    assert {start.id for start in RECORD.starts} == set(published)
    for start in RECORD.starts:
        kv = start.points.get(Check.KV_MEMORY)
        if kv is not None:
            assert kv.measured == published[start.id]["measured"]["available_kv_gib"]


def test_a_source_is_an_address_or_the_start_is_cited_by_model_version_and_date() -> None:
    for start in RECORD.starts:
        assert start.source.startswith("https://") or start.source == ""
        assert start.model


def test_accuracy_does_not_get_worse() -> None:
    """The bounds that the product promises; a change that breaks them is a change of the model, not of this test."""
    kv = summarize(our_points(RECORD.starts, Check.KV_MEMORY))
    other = summarize(our_points(elsewhere(RECORD.starts), Check.KV_MEMORY))
    weights = our_points(RECORD.starts, Check.WEIGHTS)
    tokens = our_points(RECORD.starts, Check.KV_TOKENS_GIVEN_KV)
    activations = summarize(our_points(RECORD.starts, Check.ACTIVATIONS))
    assert kv is not None
    assert other is not None
    assert activations is not None
    assert (kv.median <= 0.007, kv.p90 <= 0.06, other.median <= 0.015) == (True, True, True)
    assert activations.median <= 0.10
    # Published at least 120 and 150 figures; some checkpoints differ from the base model that they are taken for.
    assert sum(abs(point.error) <= 0.01 for point in tokens) / len(tokens) >= 0.94
    assert sum(abs(point.error) <= 0.02 for point in weights) / len(weights) >= 0.9
    told = verdicts(RECORD.starts)
    assert told.refused <= 0.05 * told.healthy


def test_no_other_tool_is_nearer_on_kv_memory() -> None:
    for starts in (RECORD.starts, elsewhere(RECORD.starts)):
        ours = summarize(our_points(starts, Check.KV_MEMORY))
        assert ours is not None
        for peer in RECORD.peers:
            theirs = summarize(peer_points(starts, Check.KV_MEMORY, peer.id))
            assert theirs is not None
            assert ours.median < theirs.median


class TestSummary:
    POINTS = (
        Point(predicted=11.0, measured=10.0, interval=(9.5, 12.0)),
        Point(predicted=9.0, measured=10.0, interval=(8.0, 9.5)),
        Point(predicted=10.2, measured=10.0),
        Point(predicted=None, measured=10.0),
    )

    def test_numbers(self) -> None:
        found = summarize(self.POINTS)
        assert found is not None
        assert (found.count, found.answered, found.inside) == (4, 3, 0.5)
        assert found.median == pytest.approx(0.1)
        assert found.p90 == math.inf
        assert found.signed_median == pytest.approx(0.02)
        assert (found.within_one_percent, found.within_five_percent) == (0.0, 0.25)

    def test_nothing(self) -> None:
        assert summarize(()) is None

    def test_order_does_not_matter(self) -> None:
        assert summarize(self.POINTS) == summarize(self.POINTS[::-1])


class TestStrictness:
    TEXT = tool.OUT.read_text("utf-8")

    def lines(self) -> list[str]:
        return self.TEXT.splitlines()

    def test_unknown_key(self) -> None:
        first, second, *rest = self.lines()
        changed = json.dumps({**json.loads(second), "colour": "blue"})
        with pytest.raises(CatalogueError, match="colour"):
            read_accuracy("\n".join([first, changed, *rest]))

    def test_cut(self) -> None:
        with pytest.raises(CatalogueError, match="cut"):
            read_accuracy("\n".join(self.lines()[:-1]))


def test_groups_hold_every_start_once() -> None:
    for by in ("version", "card", "family"):
        found = groups(RECORD.starts, by)
        assert sum(map(len, found.values())) == len(RECORD.starts)
        sizes = [len(group) for group in found.values()]
        assert sizes == sorted(sizes, reverse=True)


def test_mixed_and_elsewhere_are_parts() -> None:
    assert 0 < len(mixed(RECORD.starts)) < len(RECORD.starts)
    assert 0 < len(elsewhere(RECORD.starts)) < len(RECORD.starts)


def test_scatter_has_every_answered_point_once() -> None:
    figure = scatter(RECORD.starts, Check.KV_MEMORY, EN)
    line, met, off = figure["data"]
    assert line["x"] == line["y"]
    assert len(met["x"]) + len(off["x"]) == len(our_points(RECORD.starts, Check.KV_MEMORY))
    assert [axis["range"] for axis in (figure["layout"]["xaxis"], figure["layout"]["yaxis"])] == [
        figure["layout"]["xaxis"]["range"]
    ] * 2


def test_rows() -> None:
    assert check_rows(RECORD.starts, EN)[0].label == "KV memory"
    peers = peer_rows(RECORD.starts, RECORD.peers, Check.KV_MEMORY, EN)
    assert len(peers) == len(RECORD.peers) + 1
    assert peers[0].label == "KV Planner"
    assert group_rows(RECORD.starts, Check.KV_MEMORY, "version", EN)[-1].label == "single starts"


def test_percent_of_nothing() -> None:
    assert percent(0.0, signed=True) == "0.0 %"
