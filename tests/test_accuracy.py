"""The record of published starts: read strictly, current, summed up rightly."""

import json
import math
from statistics import median

import pytest
from msgspec.structs import replace

from kvcore.base.errors import CatalogueError
from kvcore.base.numbers import error_percent
from kvcore.base.words import Language, words
from kvcore.charts.accuracy_figures import (
    check_rows,
    fit_text,
    group_rows,
    left_out_rows,
    same_starts_rows,
    scatter,
    shown_starts,
)
from kvcore.evidence.accuracy import (
    FITTED,
    Check,
    Point,
    PublishedStart,
    batches,
    elsewhere,
    era_name,
    groups,
    held_out,
    load_accuracy,
    mixed,
    of_one_source,
    off_platform,
    our_points,
    peer_points,
    read_accuracy,
    shares_of_card,
    summarize,
    verdicts,
    widths,
    without_batch,
)
from tools import accuracy as tool

RECORD = load_accuracy()
EN = words(Language.ENGLISH)


def test_the_record_has_the_current_predictions() -> None:
    assert tool.is_current(tool.OUT.read_text("utf-8")), "run make accuracy"


def test_every_published_start_is_recorded_with_its_figures() -> None:
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
    unseen = off_platform(held_out(RECORD.starts))
    kv, shares = summarize(our_points(unseen, Check.KV_MEMORY)), sorted(shares_of_card(unseen))
    weights = our_points(RECORD.starts, Check.WEIGHTS)
    tokens = our_points(RECORD.starts, Check.KV_TOKENS_GIVEN_KV)
    activations = summarize(our_points(RECORD.starts, Check.ACTIVATIONS))
    assert kv is not None
    assert activations is not None
    assert (kv.median <= 0.015, median(shares) <= 0.004) == (True, True)
    assert activations.median <= 0.10
    # Published at least 120 and 150 figures; some checkpoints differ from the base model that they are taken for.
    assert sum(abs(point.error) <= 0.01 for point in tokens) / len(tokens) >= 0.94
    assert sum(abs(point.error) <= 0.02 for point in weights) / len(weights) >= 0.9


def test_intervals_cover_publications_that_took_no_part() -> None:
    points = our_points(held_out(RECORD.starts), Check.KV_MEMORY)
    found = summarize(points)
    assert found is not None
    assert found.inside is not None
    assert found.inside >= 0.76
    fitted = our_points(RECORD.starts, Check.KV_MEMORY)
    moved = [point.left_out_interval != point.interval for point in fitted if point.interval]
    assert sum(moved) > len(moved) / 2  # one publication among many leaves some factors as they are


def test_intervals_cover_batches_that_took_no_part() -> None:
    """Four of five, give or take; on a batch of few starts one more or less is five in a hundred."""
    every = summarize(our_points(without_batch(RECORD.starts), Check.KV_MEMORY))
    assert every is not None
    assert 0.76 <= (every.inside or 0.0) <= 0.88
    by_day = batches(RECORD.starts)
    assert list(by_day) == sorted(by_day)
    assert len(by_day) >= 3
    for starts in by_day.values():
        found = summarize(our_points(starts, Check.KV_MEMORY))
        assert found is not None
        assert 0.72 <= (found.inside or 0.0) <= 0.95


def test_batches_that_were_judged_before_they_were_known_are_of_the_record() -> None:
    days = batches(RECORD.starts)
    assert RECORD.batches
    for batch in RECORD.batches:
        assert 0 <= batch.inside <= batch.starts <= len(days[batch.date])
    assert RECORD.batches[-1].date == max(days)


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

    def test_a_start_without_an_answer_is_infinitely_wrong(self) -> None:
        found = summarize(self.POINTS)
        assert found is not None
        assert (found.count, found.answered, found.inside) == (4, 3, 0.5)
        assert found.median == pytest.approx(0.1)
        assert found.p90 == math.inf
        assert found.signed_median == pytest.approx(0.02)
        assert found.within_five_percent == 0.25

    def test_no_points_have_no_summary(self) -> None:
        assert summarize(()) is None

    def test_order_does_not_matter(self) -> None:
        assert summarize(self.POINTS) == summarize(self.POINTS[::-1])


class TestStrictness:
    TEXT = tool.OUT.read_text("utf-8")

    def lines(self) -> list[str]:
        return self.TEXT.splitlines()

    def test_an_unknown_key_is_refused(self) -> None:
        first, second, *rest = self.lines()
        changed = json.dumps({**json.loads(second), "colour": "blue"})
        with pytest.raises(CatalogueError, match="colour"):
            read_accuracy("\n".join([first, changed, *rest]))

    def test_a_cut_record_is_refused(self) -> None:
        with pytest.raises(CatalogueError, match="cut"):
            read_accuracy("\n".join(self.lines()[:-1]))


def test_each_start_is_in_one_group() -> None:
    for by in ("version", "card", "family", "era"):
        found = groups(RECORD.starts, by)
        assert sum(map(len, found.values())) == len(RECORD.starts)
        sizes = [len(group) for group in found.values()]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("version", "ranks", "name"),
    [
        ("0.8.5.post1", 1, "TP 1, vLLM < 0.11"),
        ("0.11.0", 2, "TP > 1, vLLM 0.11–0.17"),
        ("0.23.1rc1.dev8", 1, "TP 1, vLLM 0.18–0.23"),
        ("0.24.0", 8, "TP > 1, vLLM ≥ 0.24"),
        (None, 1, "TP 1, ?"),
    ],
)
def test_starts_are_named_by_ranks_and_era(version: str | None, ranks: int, name: str) -> None:
    start = replace(RECORD.starts[0], engine_version=version, tensor_parallel_size=ranks)
    assert era_name(start) == name


def test_an_error_is_a_share_of_the_card_and_a_width_of_the_figure() -> None:
    point = Point(predicted=0.7, measured=0.5, interval=(0.4, 1.0))
    start = replace(RECORD.starts[0], points={Check.KV_MEMORY: point}, card_gib=20.0)
    assert shares_of_card([start]) == pytest.approx([0.01])
    assert widths([point]) == pytest.approx([1.2])


def test_verdicts_count_starts_whose_engine_said_ready_and_failures_by_their_names() -> None:
    def start(verdict: str, *failed_as: str, started: bool = False) -> PublishedStart:
        return replace(RECORD.starts[0], verdict=verdict, failed_as=failed_as, started=started)

    found = verdicts(
        [
            start("fits", started=True),
            start("no-kv-memory", started=True),
            start("fits"),
            start("tight", "no-kv-memory"),
            start("context-too-long", "context-too-long"),
            start("fits", "no-kv-memory"),
        ]
    )
    assert (found.healthy, found.refused) == (2, 1)
    assert (found.failed, found.named_rightly, found.called_tight) == (3, 1, 1)


def test_mixed_and_elsewhere_are_parts() -> None:
    assert 0 < len(mixed(RECORD.starts)) < len(RECORD.starts)
    assert 0 < len(elsewhere(RECORD.starts)) < len(RECORD.starts)


def test_scatter_has_every_answered_point_once() -> None:
    figure = scatter(RECORD.starts, Check.KV_MEMORY, EN)
    line, *marks = figure["data"]
    assert line["x"] == line["y"]
    points = our_points(RECORD.starts, Check.KV_MEMORY)
    assert sum(len(mark["x"]) for mark in marks) == sum((point.predicted or 0) > 0 for point in points)
    assert [axis["range"] for axis in (figure["layout"]["xaxis"], figure["layout"]["yaxis"])] == [
        figure["layout"]["xaxis"]["range"]
    ] * 2


def test_fitted_points_have_a_shape_of_their_own() -> None:
    for check in Check:
        _, *marks = scatter(RECORD.starts, check, EN)["data"]
        hollow = sum(len(mark["x"]) for mark in marks if mark["marker"]["symbol"].endswith("-open"))
        points = our_points(RECORD.starts, check)
        assert hollow == sum(point.is_fitted for point in points if (point.predicted or 0) > 0)
        assert hollow == 0 or check in FITTED
        assert len({mark["marker"]["symbol"] for mark in marks}) == len(marks)


class TestLeftOut:
    """Predicted 2.0 of 2.4 GiB: with the publication left out 1.75, 2.3, or unknown; or never in the fit."""

    @staticmethod
    def start(name: str, **fit: float | bool | None) -> PublishedStart:
        point = Point(predicted=2.0, measured=2.4, interval=(1.5, 2.5), **fit)  # type: ignore[arg-type]
        return replace(RECORD.starts[0], id=name, points={Check.FRAMEWORK: point})

    def starts(self) -> list[PublishedStart]:
        return [
            self.start("worse", is_fitted=True, left_out=1.75),
            self.start("better", is_fitted=True, left_out=2.3),
            self.start("alone", is_fitted=True),
            self.start("unseen"),
        ]

    def test_the_prediction_and_its_interval_move(self) -> None:
        points = our_points(held_out(self.starts()), Check.FRAMEWORK)
        assert [point.predicted for point in points] == [1.75, 2.3, 2.0]
        assert [point.is_inside for point in points] == [False, True, True]
        assert points[1].interval == pytest.approx((1.8, 2.8))
        assert not any(point.is_fitted for point in points)

    def test_one_source_is_counted_and_never_predicted(self) -> None:
        assert of_one_source(self.starts(), Check.FRAMEWORK) == 1
        assert of_one_source(self.starts(), Check.WEIGHTS) == 0
        assert [fit_text(start.points[Check.FRAMEWORK], EN) for start in self.starts()] == [
            "in the fit",
            "in the fit",
            "in the fit, no other source",
            "not in the fit",
        ]

    def test_the_row_compares_the_same_starts(self) -> None:
        # |2.0 / 2.4 − 1| = 17 %; left out 27 %, 4.2 % and 17 %.
        (row,) = left_out_rows(self.starts(), EN)
        assert (row.count, row.one_source) == ("3", "1")
        texts = (row.median, row.median_unseen, row.p90, row.p90_unseen, row.inside)
        shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]
        assert shown == ["17 %", "17 %", "17 %", "27 %", "67 %"]
        assert row.p90_gib == "0.65"

    def test_only_fitted_checks_are_shown_otherwise(self) -> None:
        assert shown_starts(RECORD.starts, Check.WEIGHTS, left_out=True) is RECORD.starts
        shown = shown_starts(RECORD.starts, Check.FRAMEWORK, left_out=True)
        alone = of_one_source(RECORD.starts, Check.FRAMEWORK)
        assert (
            len(our_points(shown, Check.FRAMEWORK)) == len(our_points(RECORD.starts, Check.FRAMEWORK)) - alone
        )


def test_only_fitted_checks_are_left_out() -> None:
    for start in RECORD.starts:
        for check, point in start.points.items():
            assert check in FITTED or not point.is_fitted
            assert point.is_fitted or point.left_out is None
    # The widths of the KV memory are fitted on every start, and judged by the other publications.
    memory = [point for point in our_points(RECORD.starts, Check.KV_MEMORY) if point.predicted is not None]
    assert all(point.left_out_interval for point in memory)
    assert of_one_source(RECORD.starts, Check.KV_MEMORY) == 0


def test_rows_of_the_table_of_peers() -> None:
    assert check_rows(RECORD.starts, EN)[0].label == "KV memory"
    peers = same_starts_rows(RECORD.starts, RECORD.peers, Check.KV_MEMORY, EN)
    assert {row.label for row in peers} == {peer.name for peer in RECORD.peers}
    (answered,) = (
        [start for start in RECORD.starts if Check.KV_MEMORY in start.peers.get(peer.id, {})]
        for peer in RECORD.peers
        if peer.name == peers[0].label
    )
    assert peers[0].count == str(len(answered))
    unseen = [point for start in answered if (point := start.points[Check.KV_MEMORY].held_out) is not None]
    found = summarize(unseen)
    assert found is not None
    assert peers[0].our_median == error_percent(found.median, EN)
    assert group_rows(RECORD.starts, Check.KV_MEMORY, "version", EN)[-1].label == "single starts"


def test_percent_of_nothing() -> None:
    assert error_percent(0.0, EN, signed=True) == "0.0\N{NO-BREAK SPACE}%"
