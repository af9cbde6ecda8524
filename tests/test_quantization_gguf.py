"""GGUF by hand: block layouts and llama.cpp's mixtures, against the size of a published file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import KvPlannerError, ModelError
from kvcore.base.quantity import Grade
from kvcore.catalogue import find_model
from kvcore.model.quantization.formats import ExpertsShape
from kvcore.model.quantization.gguf import (
    MIXTURES,
    Blocks,
    Facts,
    Place,
    Role,
    file_type,
    names_gguf,
    takes_more_bits,
    tensor_type,
)
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests.test_families_decoder import LLAMA

NORMS = 65 * 4096
TABLE = 128256 * 4096
VALUES_AND_DOWN = 1024 * 4096 + 4096 * 14336
OTHERS = (4096 + 1024) * 4096 + 4096 * 4096 + 28672 * 4096
Q4_K, Q6_K, Q8_0 = 4.5 / 8, 6.5625 / 8, 8.5 / 8


def planned(model: str, **asked) -> Plan:
    request = {"config": LLAMA, "model": model, "accelerator": "H100-80GB", "engine_version": "0.23.0"}
    return plan(scenario_from_request({**request, "max_model_len": 4096, **asked}))


class TestNames:
    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "Q4_K_M"),
            ("/models/qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
            ("TheBloke/x-GGUF/llama-2-7b.Q5_0.gguf", "Q5_0"),
            ("x/big-IQ4_XS-00001-of-00003.gguf", "IQ4_XS"),
            ("x/Qwen3-8B-Q8_0", "Q8_0"),
            ("x/Qwen3-8B-BF16.gguf", "BF16"),
            ("x/y:UD-Q4_K_XL", "UD-Q4_K_XL"),
            ("Qwen/Qwen3-8B", ""),
            ("x/Q4_K_M/model.gguf", ""),
        ],
    )
    def test_the_file_type_ends_the_name(self, model, expected):
        assert file_type(model) == expected

    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("x/y-GGUF:Q8_0", True),
            ("./y.gguf", True),
            ("x/y-Q8_0", False),
            ("x/y:latest", False),
            ("https://host/x/y", False),
        ],
    )
    def test_names_that_the_engine_takes_for_gguf(self, model, expected):
        assert names_gguf(model) is expected

    @given(st.text(max_size=60))
    def test_any_name_is_read(self, model):
        assert isinstance(file_type(model), str)
        assert isinstance(names_gguf(model), bool)


class TestBlocks:
    @pytest.mark.parametrize(
        ("kind", "bits"),
        [
            *(("Q4_0", 4.5), ("Q4_1", 5), ("Q5_0", 5.5), ("Q5_1", 6), ("Q8_0", 8.5), ("IQ4_NL", 4.5)),
            *(("Q2_K", 2.625), ("Q3_K", 3.4375), ("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625)),
            *(("IQ4_XS", 4.25), ("F16", 16)),
        ],
    )
    def test_bits_a_weight(self, kind, bits):
        assert MIXTURES.load().types[kind].row_bytes(4096) * 8 == 4096 * bits

    def test_experts(self):
        shape = ExpertsShape(num_experts=2, hidden_size=512, intermediate_size=256, element_bytes=2)
        held = Blocks(types=(MIXTURES.load().types["Q4_K"], MIXTURES.load().types["Q6_K"])).experts_bytes(
            shape
        )
        assert held == 2 * (2 * 256 * 288 + 512 * 210) + 2

    def test_the_layers_of_llama_3_that_take_more_bits(self):
        taken = [index for index in range(32) if takes_more_bits(index, 32)]
        assert taken == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


class TestMixtures:
    @pytest.mark.parametrize(
        ("kind", "role", "layer", "expected"),
        [
            ("Q4_K_M", Role.EMBEDDING, 0, "Q4_K"),
            ("Q4_K_M", Role.OUTPUT, 0, "Q6_K"),
            ("Q4_K_M", Role.VALUES, 5, "Q4_K"),
            ("Q4_K_M", Role.DOWN, 6, "Q6_K"),
            ("Q4_K_S", Role.VALUES, 3, "Q5_K"),
            ("Q4_K_S", Role.VALUES, 4, "Q4_K"),
            ("Q5_K_M", Role.DOWN, 31, "Q6_K"),
            ("Q3_K_M", Role.VALUES, 1, "Q5_K"),
            ("Q3_K_M", Role.DOWN, 2, "Q4_K"),
            ("Q3_K_M", Role.ATTENTION_OUTPUT, 9, "Q4_K"),
            ("Q3_K_L", Role.DOWN, 9, "Q5_K"),
            ("Q2_K", Role.VALUES, 9, "Q4_K"),
            ("Q2_K_S", Role.DOWN, 3, "Q4_K"),
            ("IQ4_XS", Role.VALUES, 9, "Q5_K"),
            ("Q8_0", Role.OUTPUT, 0, "Q8_0"),
            ("Q4_0", Role.OUTPUT, 0, "Q6_K"),
            ("Q4_0", Role.DOWN, 0, "Q4_0"),
            ("F16", Role.OUTPUT, 0, "F16"),
        ],
    )
    def test_a_model_like_llama_3(self, kind, role, layer, expected):
        facts = Facts(num_layers=32, num_values=32, query_groups=4, num_experts=1, is_70b=False)
        place = Place(layer=layer, values=layer, inputs=4096)
        assert tensor_type(kind, role, place, facts, 4096) == expected

    def test_eight_experts_and_seventy_billions(self):
        place = Place(layer=40, values=40, inputs=8192)
        eight = Facts(num_layers=32, num_values=32, query_groups=4, num_experts=8, is_70b=False)
        assert tensor_type("Q4_K_M", Role.KEYS, place, eight, 4096) == "Q8_0"
        assert tensor_type("Q4_K_M", Role.ATTENTION_OUTPUT, place, eight, 4096) == "Q5_K"
        large = Facts(num_layers=80, num_values=80, query_groups=8, num_experts=1, is_70b=True)
        assert tensor_type("Q4_K_S", Role.VALUES, place, large, 8192) == "Q5_K"


class TestWholeModels:
    def test_q8_0_is_8_and_a_half_bits_of_everything_but_the_norms(self):
        elements = 32 * (VALUES_AND_DOWN + OTHERS) + 2 * TABLE
        held = planned("x/Llama-3.1-8B-GGUF:Q8_0")
        assert held.parameter_bytes_per_rank == elements * Q8_0 + NORMS * 2 + 32 * 7 + 2
        assert held.loaded_weights.grade is Grade.DERIVED

    def test_q4_k_m_of_llama_3_1_8b(self):
        """The tensors come to 4.91 GB, of a file that is published as 4.92 GB with its vocabulary. The engine has
        queries and keys as wide as the values that they are stacked with: 16 layers in Q6_K."""
        tensors = 32 * OTHERS * Q4_K + 16 * VALUES_AND_DOWN * (Q4_K + Q6_K) + TABLE * (Q4_K + Q6_K)
        assert tensors == 4_911_833_088
        padding = 16 * (4096 + 1024) * 4096 * (Q6_K - Q4_K)
        held = planned("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M")
        assert held.parameter_bytes_per_rank == tensors + padding + NORMS * 2 + 32 * 7 + 2
        assert held.loaded_weights.grade is Grade.ASSUMED
        low, high = held.loaded_weights.interval
        assert high - low == pytest.approx(0.04 * held.loaded_weights.value)

    def test_rows_that_no_block_of_256_fits(self):
        """Qwen2.5-0.5B: 896 inputs take Q5_0 for Q4_K and Q8_0 for Q6_K; 4864 are nineteen blocks."""
        raw = dict(find_model("Qwen/Qwen2.5-0.5B-Instruct").config.root.raw)
        more = [takes_more_bits(index, 24) for index in range(24)]
        values = sum((896 + 2 * 128) * 896 * (8.5 if yes else 5.5) / 8 for yes in more)
        down = sum(4864 * 896 * (6.5625 if yes else 4.5) / 8 for yes in more)
        others = 24 * (896 * 896 + 2 * 4864 * 896) * 5.5 / 8
        rest = (24 * (896 + 256) + 49 * 896) * 2 + 24 * 7 + 1
        held = planned("Qwen/x:Q4_K_M", config=raw).parameter_bytes_per_rank
        assert held == values + down + others + 151936 * 896 * Q8_0 + rest

    def test_two_ranks_share_everything_but_norms(self):
        whole, half = (planned("x/y:Q6_K", tensor_parallel_size=ranks) for ranks in (1, 2))
        types = 32 * 7 + 2
        assert whole.parameter_bytes_per_rank - types - NORMS * 2 == 2 * (
            half.parameter_bytes_per_rank - types - NORMS * 2
        )

    def test_the_flag_with_a_type_at_the_end_of_the_name(self):
        assert planned("x/y-Q8_0", quantization="gguf").quantization.detail == "Q8_0"
        assert planned("x/y-Q8_0").quantization.method == "unquantized"

    def test_a_config_of_a_gguf_file(self):
        raw = {**LLAMA, "quantization_config": {"quant_method": "gguf"}}
        assert planned("x/y-Q8_0", config=raw).quantization.detail == "Q8_0"


class TestWithoutAType:
    @pytest.mark.parametrize("model", ["x/y", "x/y:UD-Q4_K_XL", "x/y-IQ2_XXS"])
    def test_it_is_asked_for(self, model):
        with pytest.raises(ModelError) as caught:
            planned(model, quantization="gguf")
        assert caught.value.code == "gguf-type-unknown"
        assert model in str(caught.value)

    def test_the_size_of_the_file_will_do(self):
        size = 4_920_000_000
        held = planned("x/y:UD-Q4_K_XL", checkpoint={"total_size": size})
        assert held.parameter_bytes_per_rank == pytest.approx(size, rel=0.001)
        assert held.loaded_weights.grade is Grade.ASSUMED

    def test_the_size_of_another_checkpoint_will_not(self):
        with pytest.raises(ModelError) as caught:
            planned("x/y", quantization="gguf", checkpoint={"total_size": 16_060_522_496})
        assert caught.value.code == "gguf-type-unknown"


class TestReleases:
    @pytest.mark.parametrize(
        ("version", "accelerator", "needs"),
        [("0.23.0", "H100-80GB", False), ("0.24.0", "H100-80GB", True), ("0.33.0", "MI300X-192GB", True)],
    )
    def test_the_package_that_reads_it_since_it_left_the_engine(self, version, accelerator, needs):
        notices = planned("x/y:Q8_0", engine_version=version, accelerator=accelerator).notices
        named = [
            notice.params["package"] for notice in notices if notice.code == "quantization-needs-package"
        ]
        assert named == (["vllm-gguf-plugin"] if needs else [])


@pytest.mark.parametrize("kind", MIXTURES.load().files)
@pytest.mark.parametrize(
    "model",
    ["mistralai/Mixtral-8x7B-Instruct-v0.1", "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct"],
)
def test_every_type_is_between_two_bits_and_sixteen(model, kind):
    raw = dict(find_model(model).config.root.raw)
    asked = {"config": raw, "accelerator": "B200-180GB", "tensor_parallel_size": 2}
    try:
        plain = planned("x/y", **asked).parameter_bytes_per_rank
        held = planned(f"x/y:{kind}", **asked).parameter_bytes_per_rank
    except KvPlannerError as error:
        pytest.fail(str(error))
    assert plain * 2 / 16 < held < plain * 1.001
