"""The catalogues as tables."""

from kvcore import catalogue
from kvcore.engine.vllm.versions import vllm_releases
from kvcore.views.catalogue_rows import accelerator_rows, model_rows, version_rows


def test_every_model_is_there_and_can_be_read() -> None:
    rows = model_rows()
    assert tuple(row.id for row in rows) == catalogue.model_ids()
    assert all(row.source and row.checked for row in rows)
    assert [row.id for row in rows if row.layers is None] == []


def test_a_model() -> None:
    (row,) = [row for row in model_rows() if row.id == "Qwen/Qwen3-32B"]
    assert (row.layers, row.heads, row.kv_heads, row.context_tokens) == (64, 64, 8, 40960)
    assert row.kv_kib_per_token == 256
    assert row.attention == "full"


def test_every_accelerator_is_there() -> None:
    rows = accelerator_rows()
    assert {row.id for row in rows} == {card.id for card in catalogue.load_accelerators()}
    (h100,) = [row for row in rows if row.id == "H100-80GB"]
    assert (h100.bandwidth_gb_s, h100.capability, h100.vendor) == (3350.0, "9.0", "nvidia")
    assert all(row.source and row.checked for row in rows)


def test_every_release_is_there_newest_first() -> None:
    rows = [row for row in version_rows() if row.engine == "vllm"]
    assert [row.version for row in rows] == [str(version) for version in reversed(vllm_releases())]
    by_version = {row.version: row for row in rows}
    assert (by_version["0.7.3"].generation, by_version["0.8.5"].generation) == ("V0", "V1")
    assert (by_version["0.19.1"].utilization, by_version["0.20.0"].utilization) == (0.9, 0.92)
    assert {row.engine for row in version_rows()} == {"vllm", "vllm-ascend", "vllm-mindspore"}
