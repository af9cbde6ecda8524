"""The host's memory and other engines on the Plan page, without a browser."""

from __future__ import annotations

from typing import Final

import pytest

from tests.page_app import checked, open_app, params, seen, stacks

TIER: Final = {
    "model": "zai-org/GLM-5.2-FP8", "accelerator": "H200-141GB", "tensor_parallel_size": "8", "max_model_len": "32768",
    "kv_offloading_size": "200",
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.26.0", ("keeps 8 copies of every token", "takes 322.5 GiB of the host", "Tier 322.5 GiB")),
        ("0.33.0", ("file of 200.0 GiB in /dev/shm", "Tier 200.0 GiB")),
    ],
)
def test_a_tier_has_a_second_bar_and_the_step_between_releases_is_told(
    version: str, words: tuple[str, ...]
) -> None:
    app = open_app({**TIER, "engine_version": version})
    assert len(stacks(app)) == 2
    text = seen(app)
    assert "Memory of the host" in text
    for word in words:
        assert word in " ".join(text.split()), word


def test_without_a_tier_there_is_one_bar() -> None:
    assert len(stacks(open_app())) == 1


def test_the_fields_of_the_host_stand_under_their_heading() -> None:
    app = open_app()
    headings = [one.value for one in app.sidebar.markdown]
    assert "**Host and tiers**" in headings
    checked(app.number_input(key="kv_offloading_size").set_value(100.0).run())
    assert params(app)["kv_offloading_size"] == "100"
    assert len(stacks(app)) == 2


def test_a_machine_that_is_too_small_is_refused_with_what_fits() -> None:
    app = open_app({**TIER, "engine_version": "0.33.0", "node_memory_gib": "128"})
    assert "the machine has 128.0 GiB" in seen(app)


def test_shared_memory_that_is_too_small_is_refused_in_the_engine_s_words() -> None:
    app = open_app({**TIER, "engine_version": "0.33.0", "shm_gib": "0.0625"})
    assert "Insufficient space in /dev/shm" in seen(app)


def test_all_engines_of_a_card_have_a_bar() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "gpu_memory_utilization": "0.5"}
    app = open_app({**asked, "other_engines": "Qwen/Qwen3-0.6B 0.2; this; 3 GiB"})
    assert "All engines of the card" in seen(app)
    assert len(stacks(app)) == 2


def test_chinese_says_the_same_in_chinese() -> None:
    app = open_app({**TIER, "engine_version": "0.26.0"}, locale="zh-CN")
    text = seen(app)
    assert "主机内存" in text
    assert "Memory of the host" not in text
