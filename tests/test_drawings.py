"""Drawings of a plan: the boxes count what the plan counts, and the words beside them say the same."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from kvcore.base.words import Language, words
from kvcore.cache.spec import CacheKind
from kvcore.charts.drawings import cards_drawing, heads_drawing, lengths_drawing, pages_drawing
from kvcore.charts.drawings.heads import heads_panels
from kvcore.charts.drawings.pool import group_rows, layers_note, length_rows
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.derivation_plans import REQUESTS, planned

DRAWINGS = (cards_drawing, heads_drawing, lengths_drawing, pages_drawing)
ENGLISH = words(Language.ENGLISH)


class Tags(HTMLParser):
    """Every tag that opens is closed, and none is foreign."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"figure", "figcaption", "div", "i", "b", "ul", "li", "span"}, tag
        assert {name for name, _ in attrs} <= {"class", "style", "role", "aria-label"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("name", REQUESTS)
def test_every_drawing_is_whole_and_says_what_it_shows(name: str, language: Language) -> None:
    for draw in DRAWINGS:
        drawing = draw(planned(name), words(language))
        if drawing is None:
            continue
        tags = Tags()
        tags.feed(drawing.figure)
        tags.close()
        assert not tags.open
        assert drawing.title
        assert drawing.alternative
        shown = re.sub(r"<[^>]+>", " ", drawing.html)
        assert set(re.findall(r"\d[\d,.]*\d", drawing.alternative)) <= set(re.findall(r"\d[\d,.]*\d", shown))


def test_qwen3_keeps_4_kib_of_a_token_and_layer_as_its_guide_says() -> None:
    panels = {panel.name: panel for panel in heads_panels(planned("dense"))}
    assert {name: panel.bytes_per_token for name, panel in panels.items()} == {
        "MHA": 64 * 2 * 128 * 2, "GQA": 8 * 2 * 128 * 2, "MQA": 2 * 128 * 2, "MLA": (512 + 64) * 2
    }  # fmt: skip
    assert [name for name, panel in panels.items() if panel.is_of_model] == ["GQA"]
    assert "5,120 / 64 = 80" in heads_drawing(planned("dense"), ENGLISH).html  # type: ignore[union-attr]


def test_a_size_below_a_kib_is_in_the_readers_language() -> None:
    drawn = heads_drawing(planned("dense"), words(Language.CHINESE))
    assert drawn is not None
    assert "512 字节" in drawn.html
    assert "bytes" not in drawn.html


def test_deepseek_would_keep_keys_of_192_and_values_of_128_elements_a_head() -> None:
    panels = {panel.name: panel for panel in heads_panels(planned("latent"))}
    assert panels["MHA"].bytes_per_token == 128 * (128 + 64 + 128) * 2
    assert [name for name, panel in panels.items() if panel.is_of_model] == ["MLA"]


def test_a_model_of_compressed_vectors_is_none_of_the_four() -> None:
    assert not any(panel.is_of_model for panel in heads_panels(planned("compressed")))


def test_the_row_of_the_planned_length_is_what_the_plan_says_a_request_needs() -> None:
    for name in ("dense", "latent", "windows", "chunks", "hybrid", "recurrent"):
        plan = planned(name)
        assert plan.cache is not None
        row = next(row for row in length_rows(plan) if row.is_planned)
        assert row.held == plan.cache.max_concurrency
        blocks = sum(group.blocks_per_request for group in plan.cache.groups)
        assert row.bytes_in_all == blocks * plan.cache.bytes_per_block, name


def test_a_window_stops_growing_where_full_attention_goes_on() -> None:
    rows = length_rows(planned("windows"))
    window = [row.bytes_by_kind[CacheKind.SLIDING_WINDOW] for row in rows]
    full = [row.bytes_by_kind[CacheKind.FULL_ATTENTION] for row in rows]
    assert [row.tokens for row in rows] == [512, 2048, 8192, 32768, 131072]
    # ⌈(1,024 − 1 + 2 × 8,192) / 16⌉ + 1 = 1,089 blocks, in six groups; blocks of ten layers' pages.
    assert window[-2:] == [6 * 1089 * 10 * (2 * 16 * 16 * 128 * 2)] * 2
    assert [size / full[0] for size in full] == [1, 4, 16, 64, 256]


def test_gemma_3_lies_in_seven_groups_of_at_most_ten_layers() -> None:
    rows = group_rows(planned("windows"))
    assert [row.layers for row in rows] == [9, 9, 9, 9, 8, 8, 10]
    assert sum(row.layers for row in rows) == 62
    page = 2 * 16 * 16 * 128 * 2
    assert {size for row in rows for _, size in row.pages} == {page}
    assert [row.rest_bytes // page for row in rows] == [1, 1, 1, 1, 2, 2, 0]


def test_a_pipeline_of_three_stages_shows_the_layers_of_each() -> None:
    drawing = cards_drawing(planned("pipeline"), ENGLISH)
    assert [drawing.html.count(text) for text in ("stage 1", "stage 2", "stage 3", "card ")] == [1, 1, 1, 6]
    assert "layers 1 to 27" in drawing.html
    assert "layers 55 to 80" in drawing.html


def test_experts_are_spread_over_the_cards_of_all_replicas() -> None:
    drawing = cards_drawing(planned("expert parallel"), ENGLISH)
    assert "experts 0–15" in drawing.html
    assert "experts 112–127" in drawing.html


IN_GIB = {"GiB": 1.0, "MiB": 1 / 1024, "KiB": 1 / 1024**2}


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize(
    ("model", "accelerator", "ranks", "spreads_experts"),
    [
        ("openai/gpt-oss-120b", "H100-80GB", 4, False),
        ("openai/gpt-oss-120b", "H100-80GB", 4, True),
        ("openai/gpt-oss-120b", "H100-80GB", 8, False),
        ("openai/gpt-oss-120b", "H100-80GB", 8, True),
        ("Qwen/Qwen3-235B-A22B", "H100-80GB", 8, False),
        ("deepseek-ai/DeepSeek-V3", "H200-141GB", 8, True),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "H100-80GB", 2, False),
    ],
)
def test_the_lines_of_the_cards_add_up_to_the_weights_of_a_card(
    model: str, accelerator: str, ranks: int, spreads_experts: bool, language: Language
) -> None:
    request = {
        "model": model,
        "accelerator": accelerator,
        "tensor_parallel_size": ranks,
        "enable_expert_parallel": spreads_experts,
    }
    mixture = plan(scenario_from_request(request))
    assert mixture.memory is not None
    lines = re.findall(r"<li>(.*?)</li>", cards_drawing(mixture, words(language)).html)
    figures = [re.findall(r"([\d,.]+) ([GMK]iB)", line) for line in lines]
    # The last size of a line is that of one card; each is right to half its last digit.
    sizes = [float(found[-1][0].replace(",", "")) * IN_GIB[found[-1][1]] for found in figures if found]
    halves = [0.005 * IN_GIB[found[-1][1]] for found in figures if found]
    *parts, together = sizes
    if "takes" in lines[len(parts) - 1] or "少占" in lines[len(parts) - 1]:
        parts[-1] = -parts[-1]
    assert len(parts) >= 3
    assert sum(parts) == pytest.approx(together, abs=sum(halves))
    assert together == pytest.approx(mixture.memory.weights.value / 2**30, abs=halves[-1])


@pytest.mark.parametrize(
    "hostile",
    [
        {"num_attention_heads": 2**34, "num_kv_heads": 2**34},
        {"num_attention_heads": 2**34, "num_kv_heads": 1},
    ],
)
def test_a_config_of_billions_of_heads_is_drawn_without_them(hostile: dict[str, int]) -> None:
    base = planned("dense")
    picture = heads_drawing(
        replace(base, architecture=dataclasses.replace(base.architecture, **hostile)), ENGLISH
    )
    assert picture is not None
    assert len(picture.figure) < 5_000


def test_a_pipeline_of_many_stages_and_replicas_is_drawn_in_part() -> None:
    base = planned("dense")
    parallel = replace(
        base.scenario.parallel, pipeline_parallel_size=64, data_parallel_size=65_536, tensor_parallel_size=16
    )
    picture = cards_drawing(replace(base, scenario=replace(base.scenario, parallel=parallel)), ENGLISH)
    assert picture.html.count('class="kv-card"') == 4 * 16 * 16
    assert "and 48 more stages like these" in picture.html


def test_layers_that_keep_several_states_are_explained_where_they_count_more_than_once() -> None:
    request = {
        "model": "deepseek-ai/DeepSeek-V4-Flash",
        "accelerator": "H200-141GB",
        "tensor_parallel_size": 4,
    }
    several = plan(scenario_from_request(request))
    assert sum(row.layers for row in group_rows(several)) > 43
    drawing = pages_drawing(several, ENGLISH)
    assert drawing is not None
    assert "Some of the model's 43 layers keep several kinds of state" in drawing.alternative
    assert layers_note(planned("windows"), ENGLISH) == layers_note(planned("dense"), ENGLISH) == ""
