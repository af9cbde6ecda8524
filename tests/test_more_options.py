"""The headings of "More options"."""

from __future__ import annotations

from collections import Counter

from kvcore.flags import Widget, fields_of
from pages.ui.sidebar.controls import HEADINGS, OBJECTS
from tests.page_app import checked, open_app

OPEN = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"}
ELSEWHERE = {
    "engine", "engine_version", "tensor_parallel_size", "dtype", "quantization", "gpu_memory_utilization",
    "max_model_len", "wanted",
}  # fmt: skip
"""Fields whose controls stand above "More options"."""


def test_every_field_with_a_control_is_under_one_heading() -> None:
    named = Counter(name for names in HEADINGS.values() for name in names)
    expected = {name for name, flag in fields_of().items() if flag.widget is not Widget.NONE} - ELSEWHERE
    assert named == Counter({*expected, *OBJECTS})


def test_each_heading_stands_once_in_the_order_of_the_table() -> None:
    app = open_app(OPEN)
    app.session_state["more.opened"] = True
    app = checked(app.run())
    heads = [one.value.strip("*") for one in app.sidebar.markdown if one.value.strip("*") in HEADINGS]
    assert heads == [name for name in HEADINGS if name in heads]
    assert {"Batch and graphs", "Parallelism", "Host and measured values"} <= set(heads)
