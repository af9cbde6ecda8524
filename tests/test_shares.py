"""What tensor parallelism divides: against arithmetic by hand, and against the bytes that the plan counts."""

import pytest

from kvcore.memory.encoder_profile import loaded_architecture
from kvcore.memory.shares import WeightShares, weight_shares
from kvcore.model.architecture import Experts, Linear, Output, Parameter, VocabEmbedding, elements
from tests.derivation_plans import KINDS, planned


def shares(kind: str) -> WeightShares:
    plan = planned(kind)
    architecture = loaded_architecture(plan.architecture, plan.scenario, plan.resolved.version)
    return weight_shares(architecture, plan.quantization, plan.scenario.parallel, plan.resolved, plan.stage)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shares_are_the_parameters_of_the_plan(kind: str) -> None:
    assert shares(kind).per_rank == planned(kind).weights.parameters


def test_qwen3_32b_by_hand() -> None:
    # 64 layers of qkv (64 + 2 × 8 heads of 128), o, gate, up, down, two norms, norms of q and k; embedding, head, norm.
    layer = 5120 * 80 * 128 + 64 * 128 * 5120 + 3 * 5120 * 25600 + 2 * 5120 + 2 * 128
    count = 64 * layer + 2 * 151936 * 5120 + 5120
    norms = 64 * (2 * 5120 + 2 * 128) + 5120
    found = shares("dense")
    assert count == 32_762_123_264
    assert (found.count, found.whole, found.replicated) == (count, 2 * count, 2 * norms)
    assert found.divided == 2 * (count - norms)
    assert found.otherwise == 0
    assert found.per_rank == count - norms + 2 * norms


def test_one_rank_holds_everything() -> None:
    found = shares("fits")
    assert (found.divided, found.replicated, found.otherwise) == (found.whole, 0, 0)


def test_latent_attention_replicates_its_down_projections() -> None:
    # 61 layers of 7168 × (1536 + 512 + 64) numbers in fp8, with one float32 scale for each 128 × 128.
    down = 61 * 7168 * (1536 + 512 + 64)
    assert shares("latent").replicated > down


def test_copied_heads_are_neither_divided_nor_replicated() -> None:
    # 4 KV heads on 8 ranks: of each layer's qkv a rank holds 64 / 8 + 1 + 1 heads of 128.
    assert shares("copied heads").otherwise == 94 * 4096 * (8 + 2) * 128 * 2


def test_experts_dealt_over_more_ranks() -> None:
    # 128 experts over 4 × 2 ranks: 16 on each, three matrices of 4096 × 1536 in 94 layers.
    assert shares("expert parallel").otherwise == 94 * 16 * 3 * 4096 * 1536 * 2


def test_elements() -> None:
    linear = Linear(name="x", in_features=3, outputs=(Output(units=4, width=5),), bias=True)
    assert elements(linear) == 4 * 5 * 3 + 4 * 5
    assert elements(Parameter(name="x", replicated=3, sharded=4)) == 12
    assert elements(VocabEmbedding(name="x", num_embeddings=10, embedding_dim=4, bias=True)) == 50
    gated = Experts(name="x", num_experts=2, hidden_size=3, intermediate_size=4, bias=True)
    assert elements(gated) == 2 * (3 * 3 * 4 + 2 * 4 + 3)
