"""LoRA buffers against the engine's own layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.memory.adapters import lora_bytes
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.scenario import Parallel
from kvcore.units import MIB
from tests.engine_examples import LLAMA_8B, QWEN3_30B_A3B

LLAMA = read_architecture(ModelConfig.from_mapping(LLAMA_8B))


@pytest.mark.parametrize(("ranks", "printed_mib"), [(1, 88.08), (2, 62.08)])
def test_llama_8b_as_vllm_0_32_allocates_it(ranks: int, printed_mib: float) -> None:
    size = lora_bytes(LLAMA, Parallel(tensor_parallel_size=ranks), 0, 1, 16)
    assert size / MIB == pytest.approx(printed_mib, abs=0.005)


@given(st.integers(1, 16), st.integers(1, 256))
def test_buffers_grow_with_adapters_and_rank(count: int, rank: int) -> None:
    assert lora_bytes(LLAMA, Parallel(), 0, count, rank) == count * rank * lora_bytes(
        LLAMA, Parallel(), 0, 1, 1
    )


def test_stages_share_the_layers_and_keep_one_table_each() -> None:
    parallel = Parallel(pipeline_parallel_size=2)
    stages = [lora_bytes(LLAMA, parallel, stage, 1, 16) for stage in (0, 1)]
    assert sum(stages) == lora_bytes(LLAMA, Parallel(), 0, 1, 16)


def test_experts_by_hand() -> None:
    """48 layers × 128 experts × 3 × (2048 + 768), and attention, router and tables beside them."""
    architecture = read_architecture(ModelConfig.from_mapping(QWEN3_30B_A3B))
    experts = 48 * 128 * 3 * (2048 + 768)
    attention = 48 * (3 * 2048 + 4096 + 2 * 512 + 4096 + 2048)
    router = 48 * (2048 + 128)
    tables = 2 * (151936 + 2048)
    assert lora_bytes(architecture, Parallel(), 0, 1, 1) == 2 * (experts + attention + router + tables)
