"""The pooling runner, held against published starts of Qwen/Qwen3-Embedding-8B and the engine's own rules.

Starts: github.com/Zzsf11/VideoCuttingAgent output/Qwen3Embedding_vllm-server.out (0.11.0rc2 to 0.12.0: 14.1062 GiB,
67 PIECEWISE graphs) and github.com/WaroonRagwongsiri/SuperAi-SS6-Level2-Hack4 embedding.log (0.22.0: 14.11 GiB, 10
PIECEWISE graphs, "Asynchronous scheduling is disabled", the V1 model runner).
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.units import GIB, MIB, round_up
from kvcore.contract.result import error_of, result_of
from kvcore.deploy.launch import launch_arguments
from kvcore.engines.vllm.runner import runner_flag, runner_of
from kvcore.planning import Plan, plan
from kvcore.scenario import Runner
from kvcore.wire.request import scenario_from_request

EMBEDDING = "Qwen/Qwen3-Embedding-8B"
HEAD_BYTES = 151_680 * 4096 * 2
"""The output head of Qwen3-Embedding-8B: 151,665 rows padded to a multiple of 64, in bfloat16."""


def planned(model: str = EMBEDDING, **fields: Any) -> Plan:
    request = {"model": model, "accelerator": "H100-80GB", "max_model_len": 8192} | fields
    return plan(scenario_from_request({name: value for name, value in request.items() if value is not None}))


def own_config(model: str, **changes: Any) -> dict[str, Any]:
    """A config.json that is not the catalogue's to the letter."""
    return {**catalogue.find_model(model).config.raw, "transformers_version": "4.51.3", **changes}


class TestPublishedStarts:
    @pytest.mark.parametrize(("version", "printed_gib"), [("0.12.0", 14.1062), ("0.22.0", 14.11)])
    @pytest.mark.parametrize("config", [None, own_config(EMBEDDING)], ids=["catalogue", "label"])
    def test_weights(self, version: str, printed_gib: float, config: dict[str, Any] | None) -> None:
        start = planned(engine_version=version, config=config)
        assert start.loaded_weights.value / GIB == pytest.approx(printed_gib, rel=0.002)
        assert start.parameter_bytes_per_rank == 16_377_276_416

    def test_graphs_and_schedule(self) -> None:
        start = planned(engine_version="0.22.0", max_num_seqs=30).resolved
        assert (start.runner, start.cudagraph_modes) == (Runner.POOLING, ("PIECEWISE",))
        assert start.cudagraph_capture_sizes == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56)
        assert (start.async_scheduling, start.use_v2_model_runner) == (False, False)
        assert (start.enable_chunked_prefill, start.enable_prefix_caching) == (True, True)

    def test_the_profile_runs_a_layer_and_samples_nothing(self) -> None:
        """8192 tokens × (3 × 4096 + 3 × 12288) elements of two bytes are 0.75 GiB; 1024 sampled rows would be 5.9."""
        assert planned(engine_version="0.12.0").memory.activations.value == 0.75 * GIB
        assert planned(engine_version="0.12.0", runner="generate").memory.activations.value > 5 * GIB


class TestRunner:
    @pytest.mark.parametrize(
        ("architecture", "runner"),
        [
            ("Qwen3ForCausalLM", "generate"),
            ("LlamaModel", "generate"),
            ("ChatGLMModel", "generate"),
            ("InternVLChatModel", "generate"),
            ("Qwen3Model", "pooling"),
            ("BertForMaskedLM", "pooling"),
            ("BgeM3EmbeddingModel", "pooling"),
            ("Qwen3ForSequenceClassification", "pooling"),
            ("Qwen2ForProcessRewardModel", "pooling"),
            ("SomethingElse", "generate"),
        ],
    )
    def test_by_architecture(self, architecture: str, runner: str) -> None:
        config = own_config("Qwen/Qwen3-8B", architectures=[architecture])
        assert runner_of(scenario_from_request({"model": "my/tune", "config": config})).value == runner

    def test_asked_for_stands_above_the_repository_and_that_above_the_architecture(self) -> None:
        scenario = scenario_from_request({"model": EMBEDDING})
        assert runner_of(scenario) is Runner.POOLING
        assert runner_of(replace(scenario, runner=Runner.GENERATE)) is Runner.GENERATE
        stated = {"model": EMBEDDING, "checkpoint": {"sentence_transformers": False}}
        assert runner_of(scenario_from_request(stated)) is Runner.GENERATE

    def test_a_model_that_judges_does_not_generate(self) -> None:
        with pytest.raises(EngineRefusalError) as caught:
            planned("internlm/internlm2-7b-reward", runner="generate")
        assert (caught.value.code, caught.value.field) == ("runner-not-supported", "runner")
        assert planned("internlm/internlm2-7b-reward").resolved.runner is Runner.POOLING

    def test_an_unknown_one_is_refused_with_its_field(self) -> None:
        with pytest.raises(KvPlannerError) as caught:
            scenario_from_request({"model": EMBEDDING, "runner": "embed"})
        error = error_of(caught.value)["error"]
        assert (error["code"], error["field"]) == ("invalid-value", "runner")
        assert "auto, generate, pooling" in error["message"]

    @pytest.mark.parametrize(
        ("version", "runner", "flag"),
        [
            ("0.33.0", "pooling", ("runner", "pooling")),
            ("0.10.1", "generate", ("runner", "generate")),
            ("0.9.2", "pooling", ("task", "embed")),
            ("0.8.5", "generate", ("task", "generate")),
        ],
    )
    def test_in_the_words_of_the_release(self, version: str, runner: str, flag: tuple[str, str]) -> None:
        scenario = scenario_from_request({"model": EMBEDDING})
        assert runner_flag(scenario, Runner(runner), Version(version)) == flag
        arguments = launch_arguments(planned(engine_version=version, runner=runner))
        assert arguments[flag[0]] == flag[1]

    def test_only_what_is_asked_for_is_launched(self) -> None:
        assert not {"runner", "task"} & launch_arguments(planned()).keys()

    def test_the_notice_says_how_to_generate(self) -> None:
        notices = {notice.code: notice for notice in planned().notices}
        assert notices["runs-as-pooling"].params["flag"] == "--runner generate"
        for runner in ("generate", "pooling"):
            assert "runs-as-pooling" not in {notice.code for notice in planned(runner=runner).notices}


class TestVersions:
    def test_v0_pools_before_v1_does(self) -> None:
        old, new = planned(engine_version="0.9.1").resolved, planned(engine_version="0.9.2").resolved
        assert (old.is_v0, new.is_v0) == (True, False)
        assert (old.max_num_batched_tokens, old.enable_chunked_prefill) == (32_768, False)
        assert not planned(engine_version="0.9.1", runner="generate").resolved.is_v0

    @pytest.mark.parametrize(("version", "ahead"), [("0.19.1", True), ("0.20.0", False), ("0.33.0", False)])
    def test_async_scheduling(self, version: str, ahead: bool) -> None:
        assert planned(engine_version=version).resolved.async_scheduling is ahead
        assert planned(engine_version=version, runner="generate").resolved.async_scheduling

    @pytest.mark.parametrize(("version", "is_v2"), [("0.22.0", False), ("0.28.0", False), ("0.29.0", True)])
    def test_v2_model_runner(self, version: str, is_v2: bool) -> None:
        assert planned(engine_version=version).resolved.use_v2_model_runner is is_v2
        assert planned(engine_version=version, runner="generate").resolved.use_v2_model_runner

    def test_float32_checkpoints_are_served_in_half_precision(self) -> None:
        model = "Alibaba-NLP/gte-Qwen2-7B-instruct"
        assert planned(model).resolved.dtype == "float16"
        assert planned(model, runner="generate").resolved.dtype == "bfloat16"


class TestLabel:
    """A label beside a config of its own changes the memory and leaves the schedule alone."""

    def test_the_schedule_is_that_of_the_config(self) -> None:
        model = "intfloat/e5-mistral-7b-instruct"
        given = planned(model, config=own_config(model), engine_version="0.32.0", max_model_len=None)
        known = planned(model, engine_version="0.32.0", max_model_len=None)
        assert given.loaded_weights.value == known.loaded_weights.value
        assert given.resolved.cudagraph_modes == known.resolved.cudagraph_modes == ("PIECEWISE",)
        assert (given.resolved.max_concurrent_batches, known.resolved.max_concurrent_batches) == (2, 1)
        # 4095 + 2 × 8192 tokens of one request at once, or 4095 + 8192.
        blocks = [start.cache.groups[0].blocks_per_request for start in (given, known)]
        assert blocks == [1281, 769]

    def test_another_label_says_nothing(self) -> None:
        plain = planned("my/tune", config=own_config(EMBEDDING))
        assert plain.resolved.runner is Runner.GENERATE
        assert plain.weights.dropped_head == 0


class TestDroppedHead:
    def test_is_the_padded_head(self) -> None:
        weights = planned().weights
        assert weights.dropped_head == round_up(HEAD_BYTES, 2 * MIB)
        assert planned(runner="generate").weights.total - weights.total == weights.dropped_head

    def test_is_divided_like_the_head(self) -> None:
        assert planned(tensor_parallel_size=4).weights.dropped_head == round_up(HEAD_BYTES // 4, 2 * MIB)

    def test_a_tied_head_stays(self) -> None:
        weights = planned("Qwen/Qwen3-0.6B", runner="pooling").weights
        assert (weights.dropped_head, weights.total) == (0, planned("Qwen/Qwen3-0.6B").weights.total)

    def test_lies_on_the_last_stage(self) -> None:
        """Both ends of the model are of one size: with its head the last stage is the heavier one, without it not."""
        both = [
            planned("Qwen/Qwen3-8B", pipeline_parallel_size=2, runner=runner)
            for runner in ("generate", "pooling")
        ]
        assert [start.stage for start in both] == [1, 0]
        assert both[1].weights.dropped_head == 0

    def test_is_named_in_the_explanation(self) -> None:
        quantity = planned().loaded_weights
        assert quantity.formula.endswith("− dropped_head")
        assert "dropped_head" not in planned(runner="generate").loaded_weights.formula

    def test_a_checkpoint_without_it_does_not_differ(self) -> None:
        stored = {"total_size": 15_134_590_976}
        codes = {notice.code for notice in planned(checkpoint=stored).notices}
        assert "checkpoint-size-differs" not in codes
        generating = planned(checkpoint=stored, runner="generate").notices
        assert "checkpoint-size-differs" in {notice.code for notice in generating}

    @settings(max_examples=60, deadline=None)
    @given(
        st.sampled_from(catalogue.model_ids()),
        st.sampled_from((1, 2, 4)),
        st.sampled_from((1, 2)),
        st.sampled_from(("0.8.5", "0.12.0", "0.19.0", "0.33.0")),
    )
    def test_pooling_never_weighs_more(self, model: str, ranks: int, stages: int, version: str) -> None:
        fields = {
            "tensor_parallel_size": ranks, "pipeline_parallel_size": stages, "engine_version": version,
            "max_model_len": None, "measured": {"available_kv_gib": 1000},
        }  # fmt: skip
        try:
            generating, pooling = (
                planned(model, runner=runner, **fields) for runner in ("generate", "pooling")
            )
        except KvPlannerError:
            return
        # Buffers of the batch are no weights, and V0 pools whole prompts.
        lighter, heavier = (each.weights.total - each.weights.loading for each in (pooling, generating))
        assert lighter <= heavier
        assert pooling.parameter_bytes_per_rank <= generating.parameter_bytes_per_rank


class TestBothDirections:
    MODEL = "Alibaba-NLP/gte-Qwen2-7B-instruct"

    def test_nothing_is_kept(self) -> None:
        result = result_of(planned(self.MODEL))
        assert (result["verdict"], result["per_rank_gib"]["kv_cache"]) == ("fits", 0)
        assert (result["kv"]["groups"], result["kv"]["bytes_per_token"]) == ([], 0)
        assert "keeps-no-cache" in {warning["code"] for warning in result["warnings"]}

    def test_prompts_are_not_cut(self) -> None:
        resolved = planned(self.MODEL, max_model_len=32_768).resolved
        assert (resolved.enable_chunked_prefill, resolved.enable_prefix_caching) == (False, False)
        assert resolved.max_num_batched_tokens == 32_768

    def test_only_where_the_config_says_so(self) -> None:
        causal = planned(self.MODEL, config=own_config(self.MODEL, is_causal=True))
        assert causal.cache.tokens > 0
        assert "keeps-no-cache" not in {notice.code for notice in causal.notices}


class TestEncoder:
    """BAAI/bge-m3: 567,754,752 parameters, https://huggingface.co/BAAI/bge-m3."""

    CONFIG: ClassVar = {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "hidden_size": 1024,
        "intermediate_size": 4096, "max_position_embeddings": 8194, "num_attention_heads": 16,
        "num_hidden_layers": 24, "type_vocab_size": 1, "vocab_size": 250_002, "torch_dtype": "float32",
    }  # fmt: skip

    def test_nothing_is_kept(self) -> None:
        result = result_of(planned("BAAI/bge-m3", config=self.CONFIG, max_model_len=None))
        assert (result["verdict"], result["per_rank_gib"]["kv_cache"]) == ("fits", 0)
        fields = {warning["code"]: warning["field"] for warning in result["warnings"]}
        assert fields["keeps-no-cache"] == "config.architectures"

    def test_every_parameter_but_the_pooler_and_with_padding(self) -> None:
        """The pooler's 1024 × 1024 + 1024 are left out; three tables are padded to a multiple of 64 rows."""
        padding = (250_048 - 250_002 + 8256 - 8194 + 64 - 1) * 1024
        stored = 567_754_752 - 1024 * 1025
        start = planned("BAAI/bge-m3", config=self.CONFIG, max_model_len=None)
        assert start.parameter_bytes_per_rank == (stored + padding) * 2
        assert start.resolved.dtype == "float16"

    def test_it_does_not_generate(self) -> None:
        with pytest.raises(EngineRefusalError) as caught:
            planned("BAAI/bge-m3", config=self.CONFIG, runner="generate", max_model_len=None)
        assert caught.value.code == "runner-not-supported"


def test_the_v2_runner_schedules_ahead_with_n_grams_from_0_33() -> None:
    """gpt-oss-120b, TP 2, in 40 GiB: the planner of 0.33.0 gives 2069232 tokens, for a window holds the tokens of two
    batches (make parity). Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.32.0, 0.33.0)."""
    request = {
        "model": "openai/gpt-oss-120b",
        "accelerator": "H100-80GB",
        "tensor_parallel_size": 2,
        "max_model_len": 131_072,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
        "measured": {"available_kv_gib": 40},
    }
    plans = [
        plan(scenario_from_request({**request, "engine_version": version}))
        for version in ("0.32.0", "0.33.0")
    ]
    assert [one.resolved.async_scheduling for one in plans] == [False, True]
    assert plans[1].cache.tokens == 2_069_232
