"""The printed report: well-formed, self-contained, and nothing of a name is markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from kvcore.planning import Plan
from kvcore.texts.words import Language, count, words
from kvcore.views.plan_report import memory_svg, report_html
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
    for text in ("Fits: 20 full-length requests at once", count(plan.cache.tokens), "vllm serve Qwen/Qwen3-32B", LINK,
                 "GPU KV cache size: 163,840 tokens", "Your figures against the estimate"):  # fmt: skip
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
