"""Which model runner drives the GPU, generating or pooling, and its batches: default sizes, how many are in flight, how
ranks with whole experts exchange their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError, Notice, notice
from kvcore.engine.cards import CardView, MemoryTier
from kvcore.engine.switches import BatchTiers, Switches, V1Engine, V2Models
from kvcore.engines.vllm.classes import CLASSES
from kvcore.engines.vllm.draft import proposed_tokens
from kvcore.engines.vllm.start import Start
from kvcore.engines.vllm.versions import switches_of
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import GENERATING_SUFFIXES, POOLING_SUFFIXES, decoder
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.scenario import Runner, Scenario

NO_V2_METHODS: Final[Mapping[bool, tuple[str, ...]]] = {
    False: ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "draft_model", "custom_class"),
    True: ("suffix", "medusa", "mlp_speculator", "custom_class"),
}
"""Speculative methods that the V2 runner lacks, before and since it is everybody's.

Source: vllm/config/vllm.py:VllmConfig._get_v2_model_runner_unsupported_features (0.28.0, 0.32.0).
"""

NOT_ASYNC_METHODS: Final = ("ngram", "suffix", "medusa", "mlp_speculator")
"""Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.32.0)."""
BIG_BATCH: Final = (8192, 1024)
HUGE_BATCH: Final = (16_384, 1024)
SMALL_BATCH: Final = (2048, 256)
"""(tokens, sequences) of the API server. Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.8.5,
0.32.0)."""

V0_TOKENS: Final = 2048
V0_MULTIMODAL_TOKENS: Final = 5120
V0_POOLING_TOKENS: Final = 32_768
"""Source: vllm/config.py:_POOLING_MODEL_MAX_NUM_BATCHED_TOKENS (0.8.5)."""
V0_SEQUENCES: Final = 256
V0_CHUNKED_LENGTH: Final = 32_768
"""V0 turns chunked prefill on above this length. Source: vllm/engine/arg_utils.py:_set_default_args_v0 (0.8.5)."""

GB10_CAPABILITY: Final = (12, 1)
"""NVML names no memory for it, so that every release takes the small defaults; 0.33 says so in words.

Source: vllm/platforms/cuda.py:NvmlCudaPlatform.get_device_total_memory (0.18.0, 0.32.0), vllm/engine/arg_utils.py
(0.33.0). Published starts of 0.18.1 and 0.27.1 capture 35 graphs in full, for 256 sequences.
"""
GEMMA4_VIDEO_TOKENS: Final = 32 * (70 + 2 + 6)
"""Frames of a video, by the tokens of a frame, its two borders and its time.

Source: vllm/model_executor/models/gemma4_mm.py:Gemma4ProcessingInfo.get_mm_max_tokens_per_item (0.22.1, 0.33.0).
"""


def speculation_of(scenario: Scenario, architecture: Architecture) -> tuple[str, int]:
    """The speculative method and its tokens; "" and 0 without."""
    config = scenario.speculative_config
    return ("", 0) if config is None else (config.method, proposed_tokens(config, architecture))


def uses_v2_runner(start: Start, runner: Runner, method: str) -> bool:
    """Whether the V2 model runner is used, as `runner`. It pools only where it is everybody's.

    Source: vllm/config/vllm.py:VllmConfig.use_v2_model_runner, _is_default_v2_model_runner_model (0.22.1, 0.23.0,
    0.28.0, 0.32.0).
    """
    rule, is_quantized = start.switches.model_runner_v2, start.quantization.method not in ("", NOT_QUANTIZED)
    asked = start.scenario.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if rule is V2Models.NEVER:
        return False
    if asked in ("0", "1"):
        return asked == "1"
    is_everybodys = rule is V2Models.ALL
    if method in NO_V2_METHODS[is_everybodys] or (runner is Runner.POOLING and not is_everybodys):
        return False
    names = frozenset(start.scenario.config.architectures)
    classes = CLASSES.load().v2_runner
    is_listed = bool(names & classes.experts)
    match rule:
        case V2Models.OPT_IN:
            return False
        case V2Models.QWEN3:
            return "Qwen3ForCausalLM" in names and not is_quantized
        case V2Models.PLAIN:
            return bool(names & classes.dense) and not is_quantized
        case V2Models.LISTED:
            return is_listed or bool(names & classes.dense)
        case V2Models.DENSE:
            return is_listed or (not start.traits.recurrent and start.architecture.moe is None)
        case V2Models.ALL:
            return True
        case other:
            assert_never(other)


def is_async(start: Start, method: str, use_v2: bool) -> bool:
    """Whether the next batch is scheduled while one runs.

    Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.14.1, 0.19.1, 0.20.2, 0.32.0, 0.33.0).
    """
    switches, has_stages = start.switches, start.scenario.parallel.pipeline_parallel_size > 1
    if start.is_pooling and not switches.async_pooling:
        return False
    keeps_up = method not in NOT_ASYNC_METHODS or (use_v2 and switches.v2_async_methods)
    return switches.async_scheduling and keeps_up and (use_v2 or not has_stages)


def max_concurrent_batches(is_asynchronous: bool, use_v2: bool, stages: int) -> int:
    """Batches in flight at once.

    Source: vllm/config/vllm.py:VllmConfig.max_concurrent_batches (0.28.0, 0.32.0).

    Example:
        >>> max_concurrent_batches(True, False, 1), max_concurrent_batches(True, True, 4)
        (2, 5)
    """
    if is_asynchronous and use_v2:
        return stages + 1
    return 2 if is_asynchronous and stages == 1 else stages


CHAT_SUFFIX: Final = "ChatModel"
"""Source: vllm/config/model.py:_SUFFIX_TO_DEFAULTS (0.32.0)."""

TASKS: Final = (("RewardModel", "reward"), ("Classification", "classify"))
"""`--task` of models that judge, by the end of their name. Source: vllm/config.py:_get_preferred_task (0.8.5)."""


def runner_of(scenario: Scenario) -> Runner:
    """generate or pooling: as asked, else pooling for a Sentence Transformers repository, else by the architecture.

    Raises EngineRefusalError `runner-not-supported` where a model that only judges is asked to generate.

    Source: vllm/config/model.py:ModelConfig._get_default_runner_type (0.11.0, 0.19.0, 0.33.0); before 0.10.1
    vllm/config.py:ModelConfig._get_preferred_task (0.8.5, 0.9.2).
    """
    names = scenario.config.architectures
    if scenario.runner is Runner.GENERATE and (judging := [name for name in names if only_pools(name)]):
        raise EngineRefusalError(
            "runner-not-supported", "runner", scenario.runner.value, architecture=judging[0]
        )
    if scenario.runner is not Runner.AUTO:
        return scenario.runner
    if scenario.checkpoint.sentence_transformers:
        return Runner.POOLING
    return next((runner for name in names if (runner := runner_by_name(name)) is not None), Runner.GENERATE)


def only_pools(architecture: str) -> bool:
    """Whether no release generates with it.

    Example:
        >>> only_pools("BertModel"), only_pools("LlamaForCausalLM")
        (True, False)
    """
    if architecture in decoder.READERS:
        return False
    from kvcore.model.families.embedders import READERS  # for a model that is no decoder only

    return architecture in READERS


def runner_by_name(architecture: str) -> Runner | None:
    """The runner of an architecture without Sentence Transformers files; None for a name that tells nothing.

    Source: vllm/config/model.py:try_match_architecture_defaults (0.11.0, 0.33.0).

    Example:
        >>> runner_by_name("Qwen3ForSequenceClassification").value, runner_by_name("MistralModel").value
        ('pooling', 'generate')
    """
    generates = CLASSES.load().runner.generate
    if architecture in generates or architecture.endswith((*GENERATING_SUFFIXES, CHAT_SUFFIX)):
        return Runner.GENERATE
    is_pooling = architecture.endswith(POOLING_SUFFIXES) or only_pools(architecture)
    return Runner.POOLING if is_pooling else None


def scheduling_runner(scenario: Scenario, runner: Runner) -> Runner:
    """The runner whose schedule is planned: how many batches are in flight, which engine runs, how prompts are cut.

    A request with a config.json of its own is scheduled as an engine would that is given this config.json alone. There
    the model's name is a label: it says what else the repository contains, which changes the memory, and no more.
    """
    if scenario.runner is not Runner.AUTO or not scenario.checkpoint.sentence_transformers:
        return runner
    named = catalogue.bundled_model(scenario.model)
    is_label = named is not None and named.config != scenario.config
    by_name = (runner_by_name(name) for name in scenario.config.architectures)
    return next((found for found in by_name if found is not None), Runner.GENERATE) if is_label else runner


FIRST_ENGINE_ALONE: Final = frozenset({"MllamaForConditionalGeneration"})
"""Classes of `SupportsV0Only` that are planned. Source: vllm/model_executor/models/mllama.py (0.9.2, 0.10.1.1)."""


def runs_v0(scenario: Scenario, card: CardView, switches: Switches, scheduling: Runner) -> bool:
    """Whether the first engine runs: by default before 0.8, by VLLM_USE_V1=0, and for what V1 could not do yet.

    Source: vllm/envs.py:VLLM_USE_V1, vllm/engine/arg_utils.py:EngineArgs._is_v1_supported_oracle (0.8.5 refuses to
    pool, 0.9.2 does not; 0.10.2).
    """
    asked = scenario.env.get("VLLM_USE_V1")
    match switches.v1_engine:
        case V1Engine.ONLY:
            return False
        case V1Engine.NEVER:
            return True
        case V1Engine.OPT_IN:
            return asked != "1"
        case V1Engine.DEFAULT:
            if asked in ("0", "1"):
                return asked == "0"
        case other:
            assert_never(other)
    is_fp8_off_hopper = scenario.kv_cache_dtype.startswith("fp8") and card.number != 90
    cannot_pool = scheduling is Runner.POOLING and not switches.v1_pooling
    is_first_alone = not FIRST_ENGINE_ALONE.isdisjoint(scenario.config.architectures)
    return card.predates_ampere or is_fp8_off_hopper or cannot_pool or is_first_alone


def runner_flag(scenario: Scenario, runner: Runner, version: Version) -> tuple[str, str]:
    """Name and value of the flag that asks for `runner`, without dashes.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> embedding = scenario_from_request({"model": "Qwen/Qwen3-Embedding-8B"})
        >>> runner_flag(embedding, Runner.POOLING, Version("0.9.2"))
        ('task', 'embed')
    """
    if switches_of(version).runner_flag:
        return "runner", runner.value
    if runner is not Runner.POOLING:
        return "task", runner.value
    tasks = (task for name in scenario.config.architectures for end, task in TASKS if name.endswith(end))
    return "task", next(tasks, "embed")


def runner_notices(start: Start) -> tuple[Notice, ...]:
    """`runs-as-pooling` where the repository and not the request makes a model pool; `keeps-no-cache` where no layer
    keeps anything of a request."""
    scenario, notices = start.scenario, []
    by_repository = scenario.runner is Runner.AUTO and scenario.checkpoint.sentence_transformers
    if start.runner is Runner.POOLING and by_repository:
        flag, value = runner_flag(scenario, Runner.GENERATE, start.version)
        notices.append(notice("runs-as-pooling", "runner", flag=f"--{flag} {value}"))
    if start.traits.is_bidirectional:
        deciding = "is_causal" if scenario.config.language.has("is_causal") else "architectures"
        notices.append(notice("keeps-no-cache", f"config.{deciding}"))
    return tuple(notices)


def batch_defaults(tiers: BatchTiers, card: CardView) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of V1 on a card, when neither flag is given.

    Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.8.5, 0.9.0.1, 0.28.0, 0.33.0).
    """
    is_small_a100 = card.is_a100 and tiers != BatchTiers.BY_MEMORY
    is_small = card.memory_tier is MemoryTier.SMALL or card.compute_capability == GB10_CAPABILITY
    if tiers == BatchTiers.HUGE and card.memory_tier is MemoryTier.HUGE:
        return HUGE_BATCH
    return SMALL_BATCH if is_small or is_small_a100 else BIG_BATCH


def largest_item_tokens(config: ModelConfig) -> int:
    """Tokens of the largest multimodal item of a model whose items attend to themselves; 0 where the engine asks none.

    Only Gemma 4 says its tokens without trying them out, and only its larger models see items both ways.

    Source: vllm/engine/arg_utils.py:EngineArgs._get_min_mm_batched_tokens, vllm/transformers_utils/
    model_arch_config_convertor.py:Gemma4ModelArchConfigConvertor.is_mm_prefix_lm (0.32.0).

    Example:
        >>> from kvcore.catalogue import find_model
        >>> largest_item_tokens(find_model("google/gemma-4-31B-it").config)
        2496
    """
    if config.model_type != "gemma4" or config.root.optional_section("vision_config") is None:
        return 0
    sees_both_ways = config.language.string("use_bidirectional_attention", "") == "vision"
    return GEMMA4_VIDEO_TOKENS if sees_both_ways else 0


def v0_tokens(start: Start, max_model_len: int, chunked: bool) -> int:
    """V0's default max_num_batched_tokens: a whole prompt, unless prefills are cut.

    Source: vllm/config.py:SchedulerConfig.__post_init__ (0.6.6, 0.8.5).
    """
    tokens = V0_TOKENS if chunked else max(max_model_len, V0_TOKENS)
    if start.is_pooling:
        tokens = max(tokens, V0_POOLING_TOKENS)
    return max(tokens, V0_MULTIMODAL_TOKENS) if start.architecture.is_multimodal else tokens


EXCHANGED_TOKENS: Final = 256
"""Tokens that a rank may send at once unless a variable sets another number.

Source: vllm/envs.py:VLLM_MOE_DP_CHUNK_SIZE (0.9.2, 0.19.0),
vllm/config/scheduler.py:SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP (0.20.0, 0.29.0).
"""
GATHERING: Final = (None, "naive", "allgather_reducescatter")
"""Backends by which each rank has the tokens of all.

Source: vllm/config/parallel.py:All2AllBackend (0.11.2, 0.33.0).
"""
BATCHED: Final = ("deepep_low_latency", "nixl_ep")


def exchange_of(scenario: Scenario) -> str | None:
    """The backend asked for, by flag or variable; None leaves it to the engine: gathering and scattering.

    Source: vllm/config/parallel.py:ParallelConfig.__post_init__ (0.11.2), vllm/envs.py:VLLM_ALL2ALL_BACKEND (0.10.2).
    """
    return scenario.parallel.all2all_backend or scenario.env.get("VLLM_ALL2ALL_BACKEND")


def exchanges_batches(scenario: Scenario) -> bool:
    """Whether ranks exchange whole batches with low latency.

    Source: vllm/config/parallel.py:ParallelConfig.use_batched_dp_moe (0.20.0, 0.29.0).
    """
    parallel = scenario.parallel
    return (
        exchange_of(scenario) in BATCHED
        and parallel.enable_expert_parallel
        and parallel.data_parallel_size > 1
    )


def gathers_tokens(scenario: Scenario) -> bool:
    """Whether each rank gathers the tokens of all replicas: by default, and wherever experts are not whole."""
    return not scenario.parallel.enable_expert_parallel or exchange_of(scenario) in GATHERING
