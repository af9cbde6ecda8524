"""gpt-oss's experts as the kernel of a card keeps them: published starts, and shapes read in the kernels' sources.

"Model loading took" of published starts, all openai/gpt-oss: 13.64 and 7.01 GiB (20b, H100, 0.19.0, TP 1 and 2;
github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0), 32.98 GiB (120b, TP 2, 0.15.1;
github.com/parallelworks/activate-rag-vllm, vllm.out of 2026-02-09; a Hopper card of 139 GiB by its budget),
17.2217 GiB (120b, A100, TP 4, 0.10.1.1).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from kvcore.base.errors import CatalogueError
from kvcore.base.units import GIB
from kvcore.memory.expert_kernels import EXPERT_KERNELS, ExpertKernel, expert_kernel, tiled
from kvcore.memory.weights import WeightBytes
from kvcore.model.quantization.formats import ExpertsShape
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request


def weights(model: str, card: str, version: str, ranks: int = 1, **fields: Any) -> WeightBytes:
    request = {"model": model, "accelerator": card, "engine_version": version, "tensor_parallel_size": ranks}
    return plan(scenario_from_request({**request, **fields})).weights


@pytest.mark.parametrize(
    ("model", "card", "version", "ranks", "printed_gib"),
    [
        ("openai/gpt-oss-20b", "H100-80GB", "0.19.0", 1, 13.64),
        ("openai/gpt-oss-20b", "H100-80GB", "0.19.0", 2, 7.01),
        ("openai/gpt-oss-120b", "H200-141GB", "0.15.1", 2, 32.98),
        ("openai/gpt-oss-120b", "A100-80GB", "0.10.1.1", 4, 17.2217),
    ],
)
def test_published_starts(model: str, card: str, version: str, ranks: int, printed_gib: float) -> None:
    assert weights(model, card, version, ranks).total / GIB == pytest.approx(printed_gib, rel=0.0025)


def test_the_parameters_are_counted_as_marlin_wants_them_on_every_card() -> None:
    counted = {
        weights("openai/gpt-oss-120b", card, "0.32.0", 8).parameters
        for card in ("H100-80GB", "A100-80GB", "B200-180GB")
    }
    assert counted == {9_254_395_584}


@pytest.mark.parametrize(
    ("version", "capability", "kernel"),
    [
        ("0.11.2", 90, None),
        ("0.12.0", 90, "TRITON"),
        ("0.19.0", 80, None),
        ("0.19.0", 89, None),
        ("0.32.0", 90, "TRITON"),
        ("0.32.0", 100, "FLASHINFER_TRTLLM"),
        ("0.32.0", 120, None),
    ],
)
def test_the_kernel_follows_release_and_card(version: str, capability: int, kernel: str | None) -> None:
    row = expert_kernel(Version(version), "nvidia", capability)
    assert (row.kernel if row else None) == kernel


def test_lora_takes_the_marlin_kernel() -> None:
    plain = weights("openai/gpt-oss-20b", "H100-80GB", "0.19.0")
    adapted = weights("openai/gpt-oss-20b", "H100-80GB", "0.19.0", enable_lora=True)
    assert adapted.loading > plain.loading
    assert adapted.parameters == plain.parameters


def test_deleting_the_scales_saves_their_bytes() -> None:
    """One byte a group of 32: (5,760 + 2,880) rows × 90 groups of each of the 24 × 32 experts."""
    kept = weights("openai/gpt-oss-20b", "H100-80GB", "0.24.0").loading
    deleted = weights("openai/gpt-oss-20b", "H100-80GB", "0.25.1").loading
    assert kept - deleted == 24 * 32 * (5760 + 2880) * 90


@given(st.integers(1, 5000), st.integers(1, 5000), st.tuples(st.integers(1, 256), st.integers(1, 64)))
def test_a_tile_never_shrinks_a_matrix(rows: int, columns: int, tile: tuple[int, int]) -> None:
    padded = tiled(rows, columns, tile)
    assert rows * columns <= padded < (rows + tile[0]) * (columns + tile[1])


@given(st.sampled_from(EXPERT_KERNELS.load().kernels), st.sampled_from((360, 720, 1440, 2880)))
def test_no_kernel_keeps_less_than_the_checkpoint(kernel: ExpertKernel, intermediate: int) -> None:
    shape = ExpertsShape(
        num_experts=1, hidden_size=2880, intermediate_size=intermediate, element_bytes=2, bias=True
    )
    assert kernel.experts_bytes(shape) >= shape.elements // 2 + shape.elements // 32 + shape.bias_bytes


def test_an_unknown_key_is_refused() -> None:
    row = {"source": "x", "kernel": "TRITON", "hidden": 1}
    with pytest.raises(CatalogueError):
        EXPERT_KERNELS.read({"reviewed": "0.33.0", "kernels": [row]})
