"""Every link that is read renders, and the link that the page itself gives shows the same page in a fresh session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from tests.link_examples import Example, examples, range_examples
from tests.page_app import APP, FOLDED, checked

LINKS = 300
PARTS = 20
RANGE_LINKS = 40
RANGE_PARTS = 4
SEED = 9
RANDOM = re.compile(r'deferred_file_id: "\w+"')
"""Ids that Streamlit makes anew for each download."""


def opened(page: str, params: dict[str, str]) -> AppTest:
    """A fresh session at an address, its folded parts open."""
    app = AppTest.from_file(APP, default_timeout=300)
    app.context = {"locale": "en-US"}
    for part in FOLDED:
        app.session_state[f"{part}.opened"] = True
    for name, value in params.items():
        app.query_params[name] = value
    if page != "plan":
        app.switch_page(f"pages/{page}.py")
    checked(app.run())
    assert not [one.value for one in app.caption if "internal-error" in one.value], (page, params)
    return app


def elements(node: Any) -> Iterator[Any]:
    """Everything on a page, the sidebar too, in the order in which it stands there."""
    children = getattr(node, "children", None)
    if children is None:
        yield node
    for child in (children or {}).values():
        yield from elements(child)


def shown(app: AppTest) -> list[str]:
    """All that the browser gets of a page."""
    found = (one for one in elements(app._tree) if hasattr(one, "proto") and one.type != "empty")
    return [f"{one.type} {RANDOM.sub('', str(one.proto))}" for one in found]


def own_link(app: AppTest, page: str) -> dict[str, str]:
    """The link of the page to itself, as its navigation has it."""
    path = "" if page == "plan" else page
    link = next(one.proto for one in app.get("page_link") if one.proto.page == path)
    return dict(parse_qsl(link.query_string, keep_blank_values=True))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_link_renders_and_comes_back_as_the_same_page(part: int) -> None:
    for page, params in islice(examples(LINKS, SEED), part, None, PARTS):
        app = opened(page, params)
        again = opened(page, own_link(app, page))
        assert shown(again) == shown(app), Example(page, params)


@pytest.mark.parametrize("part", range(RANGE_PARTS))
def test_every_number_that_a_request_may_have_is_drawn(part: int) -> None:
    for page, params in islice(range_examples(RANGE_LINKS, SEED), part, None, RANGE_PARTS):
        opened(page, params)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_batched_tokens", "1500000000"),
        ("measured.non_torch_gib", "-1"),
        ("measured.cuda_graph_gib", "-0.5"),
        ("measured.weights_gib", "20000"),
    ],
)
def test_a_control_shows_a_number_that_is_far_from_usual(name: str, value: str) -> None:
    app = opened("plan", {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", name: value})
    assert app.number_input(key=name).value == float(value)
