"""The printed report: well-formed, self-contained, and nothing of a name is markup."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvcore.base.numbers import count, gib_text
from kvcore.base.words import Language, words
from kvcore.charts.memory_bar import segments
from kvcore.charts.plan_report import BOTTOM, CURVE_HEIGHT, WIDTH, memory_picture, memory_svg, report_html
from kvcore.explain.numbers import number_rows
from kvcore.planning import Plan
from tests import present_plans

LINK = "https://kv.example/?v=1&model=a%2Fb&max_model_len=8192"
VOID = {"meta", "link", "br", "img", "input", "hr"}
LOADING = {"src", "href", "xlink:href", "action", "data", "poster", "srcset", "background"}
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>'\"&{{x}}"


class Reader(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(plan: Plan, language: Language = Language.ENGLISH) -> Reader:
    reader = Reader()
    reader.feed(report_html(plan, LINK, words(language)))
    reader.close()
    assert reader.open == []
    return reader


PLANS = {
    "fits": present_plans.fits, "long": present_plans.too_long, "big": present_plans.too_big,
    "thumb": present_plans.rule_of_thumb,
}  # fmt: skip


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("name", PLANS)
def test_nothing_runs_and_nothing_is_loaded(name: str, language: Language) -> None:
    reader = read(PLANS[name](), language)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "img"} & set(reader.tags)
    for attribute, value in reader.attributes:
        assert attribute not in LOADING
        assert not attribute.startswith("on")
        assert "url(" not in (value or "").replace("url(#hatch-", "")
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes
    style = report_html(PLANS[name](), LINK, words(language)).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_it_says_what_the_plan_says() -> None:
    plan = present_plans.rule_of_thumb()
    reader = read(plan)
    assert plan.cache is not None
    for text in ("Fits: 20 requests of 8,192 tokens at once", count(plan.cache.tokens), LINK,
                 "vllm serve Qwen/Qwen3-32B", "GPU KV cache size: 163,840 tokens",
                 "Your figures against the estimate"):  # fmt: skip
        assert text in reader.text
    assert reader.tags.count("svg") >= 2
    assert reader.tags.count("polyline") == 1


def test_a_plan_that_fails_has_its_bar_and_no_curve() -> None:
    reader = read(present_plans.too_big())
    assert "missing" in reader.text
    assert "polyline" not in reader.tags
    assert ("fill", "url(#hatch-missing)") in reader.attributes


@pytest.mark.parametrize("language", Language)
def test_a_hostile_name_is_text(language: Language) -> None:
    plain, hostile = (
        read(present_plans.fits(), language),
        read(present_plans.renamed(present_plans.fits(), HOSTILE), language),
    )
    assert hostile.tags == plain.tags
    assert HOSTILE in hostile.text


def test_it_says_its_language() -> None:
    assert ("lang", "zh-CN") in read(present_plans.fits(), Language.CHINESE).attributes
    assert ("lang", "en") in read(present_plans.fits()).attributes


def test_every_pattern_that_is_used_is_defined() -> None:
    reader = read(present_plans.too_big())
    ids = {value for name, value in reader.attributes if name == "id"}
    used = {
        (value or "")[5:-1] for name, value in reader.attributes if name == "fill" and "url(" in (value or "")
    }
    assert used
    assert used <= ids


def test_a_part_that_is_partly_missing_is_named_where_it_is_not_hatched() -> None:
    plan = present_plans.request(max_num_batched_tokens=131_072)
    drawn = memory_svg(plan, words(Language.ENGLISH))
    (name,) = re.findall(r'<text x="([0-9.]+)"[^>]*>Activations', drawn)
    (hatched,) = re.findall(r'<rect x="([0-9.]+)"[^>]*fill="url\(#hatch-missing\)"', drawn)
    assert float(name) < float(hatched)


LLAMA = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 2,
    "max_model_len": 8192,
}


def test_a_shortage_has_no_second_minus() -> None:
    plan = present_plans.request(**LLAMA, gpu_memory_utilization=0.99)
    (said,) = re.findall(r">([^<>]+) missing</text>", memory_svg(plan, words(Language.ENGLISH)))
    assert re.fullmatch(r"\d+\.\d\d GiB", said)


def test_longer_requests_go_on_to_fit_fewer_times_down_to_the_end_of_the_curve() -> None:
    """Twice the length takes twice the cache where all layers keep every token: no part of the line is flat."""
    plan = present_plans.request(**LLAMA, gpu_memory_utilization=0.93)
    drawn = report_html(plan, LINK, words(Language.ENGLISH))
    (line,) = re.findall(r'<polyline points="([^"]+)"', drawn)
    heights = [float(point.split(",")[1]) for point in line.split()]
    steps = [lower - upper for upper, lower in pairwise(heights)]
    assert min(steps) > 0.8 * max(steps)
    assert min(heights) >= 0
    assert max(heights) <= CURVE_HEIGHT - BOTTOM


def test_the_last_length_of_the_axis_stands_inside_the_drawing() -> None:
    plan = present_plans.request(**LLAMA, gpu_memory_utilization=0.93)
    drawn = report_html(plan, LINK, words(Language.ENGLISH))
    places = {text: float(x) for x, text in re.findall(r'<text x="([0-9.]+)"[^>]*>(\d+K)</text>', drawn)}
    last = max(places, key=lambda text: int(text.removesuffix("K")))
    # Letters of 12 pixels are at most 9 wide, and stand around the middle.
    assert places[last] + 9 * len(last) / 2 <= WIDTH


def test_each_part_stands_once_in_the_legend() -> None:
    plan = present_plans.request(**LLAMA)
    assert len([one for one in segments(plan) if one.part.name == "cuda_graphs"]) == 2
    drawn = report_html(plan, LINK, words(Language.ENGLISH))
    (legend,) = re.findall(r'<ul class="legend">(.*?)</ul>', drawn)
    entries = re.findall(r"</svg>([^<]+) <b>([^<]+)</b>", legend)
    assert len({name for name, _ in entries}) == len(entries)
    assert plan.memory is not None
    assert dict(entries)["CUDA graphs"] == gib_text(plan.memory.cuda_graphs.value)


def test_a_negative_term_is_a_minus_with_its_reason() -> None:
    """gpt-oss-120b: the parameters are counted as Marlin pads them, the experts' own kernel on Hopper keeps less."""
    plan = present_plans.request(model="openai/gpt-oss-120b", accelerator="H100-80GB", tensor_parallel_size=1)
    text = read(plan).text
    assert "+ -" not in text
    assert re.search(r"65\.90 GiB \+ 32\.00 MiB \N{MINUS SIGN} 4\.73 GiB", text)
    (row,) = [one for one in number_rows(plan, words(Language.ENGLISH)) if one.label.startswith("Loading: ")]
    assert row.value == "\N{MINUS SIGN}4.73 GiB"
    table = tomllib.loads(Path("kvcore/memory/expert_kernels.toml").read_text("utf-8"))
    assert row.source in {kernel["source"] for kernel in table["kernels"]}


def test_without_such_a_kernel_loading_has_no_row_of_its_own() -> None:
    rows = number_rows(present_plans.request(), words(Language.ENGLISH))
    assert not [one for one in rows if one.label.startswith("Loading: ")]


@pytest.mark.parametrize(
    ("language", "named"), [(Language.ENGLISH, "KV cache 5.0 GiB"), (Language.CHINESE, "KV 缓存 5.0 GiB")]
)
def test_the_memory_bar_is_a_picture_of_its_own(language: Language, named: str) -> None:
    """The worked example: 40 GiB on 8 cards for keys and values, 5 GiB on each."""
    texts = texts_of(memory_picture(present_plans.rule_of_thumb(), words(language)))
    assert named in texts
    assert any(text.startswith("Qwen/Qwen3-32B · GeForce RTX 4090 × 8") for text in texts)


def test_every_swatch_of_a_legend_has_a_colour() -> None:
    drawn = memory_picture(present_plans.request(tensor_parallel_size=2), words(Language.ENGLISH))
    fills = re.findall(r'fill="([^"]*)"', drawn)
    assert fills
    assert all(
        re.fullmatch(r"#[0-9A-Fa-f]{3,6}|url\(#hatch-[a-z]+\)|none|rgba\([^)]*\)", fill) for fill in fills
    )


def test_the_picture_of_a_hostile_name_is_well_formed() -> None:
    planned = present_plans.renamed(present_plans.too_big(), HOSTILE + "\x08")
    texts = texts_of(memory_picture(planned, words(Language.ENGLISH)))
    assert any(text.endswith(" missing") for text in texts)


def texts_of(picture: str) -> list[str]:
    """The texts of an SVG file, which has no script."""
    root = ElementTree.fromstring(picture)
    assert not [
        element for element in root.iter() if element.tag.endswith(("script", "image", "foreignObject"))
    ]
    return [element.text or "" for element in root.iter() if element.tag.endswith("}text")]
