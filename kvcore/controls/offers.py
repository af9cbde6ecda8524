"""The values that a control offers for a scenario: those that the engine accepts for its model and card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.untrusted import unquoted
from kvcore.engine.traits import traits_of
from kvcore.engines.registry import engine_of, find_engine, planned_release
from kvcore.flags import FLAGS, read_whole
from kvcore.memory.activations import restart_gain_bytes
from kvcore.model.architecture import Architecture
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, check
from kvcore.scenario import (
    AUTO,
    Scenario,
    cached_answer,
)

TENSOR_PARALLEL_SIZES: Final = (1, 2, 4, 8, 16)
REPLICAS: Final = (1, 2, 4, 8)
"""Data parallel sizes offered first."""
DTYPES: Final = (AUTO, "bfloat16", "float16", "float32")
"""Dtypes of a model; the engine's other spellings stand for these."""
_SPELLINGS: Final = {"half": "float16", "float": "float32"}
KV_CACHE_DTYPES: Final = FLAGS["kv_cache_dtype"].common
"""Dtypes offered first; the full list has all that the engine knows."""
CHECKPOINT: Final = "auto"
"""Weights as they are in the checkpoint: no `--quantization`."""
SHORTEST_LENGTH: Final = 256
MAX_TOKENS: Final = 1 << 30


@cached_answer
def tensor_parallel_sizes(scenario: Scenario) -> tuple[int, ...]:
    """The tensor parallel sizes that the engine accepts for this model, the present one included if accepted."""
    sizes = sorted({*TENSOR_PARALLEL_SIZES, scenario.parallel.tensor_parallel_size})
    return tuple(size for size in sizes if refusal(scenario, size) is None)


def nearest_tensor_parallel_size(scenario: Scenario) -> int:
    """The scenario's own size where the engine accepts it, else the largest valid size below it, else the smallest."""
    wanted = scenario.parallel.tensor_parallel_size
    if refusal(scenario, wanted) is None:
        return wanted
    return nearest_below(wanted, tensor_parallel_sizes(scenario) or (wanted,))


def refusal(scenario: Scenario, tensor_parallel_size: int) -> KvPlannerError | None:
    """The engine's refusal of a tensor parallel size, or None; refusals of other fields do not count."""
    parallel = replace(scenario.parallel, tensor_parallel_size=tensor_parallel_size)
    return _refusal(replace(scenario, parallel=parallel), "tensor_parallel_size")


def _refusal(scenario: Scenario, field: str) -> KvPlannerError | None:
    try:
        check(scenario)
    except KvPlannerError as error:
        return error if error.field == field else None
    return None


def refused_values(scenario: Scenario, field: str, values: Sequence[str | None]) -> frozenset[str | None]:
    """Those of `values` that card and release refuse for `field`, a flag that the engine checks before memory.

    Refusals of other fields do not count.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> old = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"})
        >>> sorted(refused_values(old, "kv_cache_dtype", ("auto", "fp8", "nvfp4")))
        ['fp8', 'nvfp4']
    """
    return frozenset(value for value in values if _refusal(replace(scenario, **{field: value}), field))


def dtype_of(scenario: Scenario) -> str:
    """The dtype of `scenario` as one of DTYPES: `--dtype half` is float16, `--dtype float` is float32.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> dtype_of(scenario_from_request({"model": "Qwen/Qwen3-8B", "dtype": "half"}))
        'float16'
    """
    return _SPELLINGS.get(scenario.dtype, scenario.dtype)


@cached_answer
def dtype_refusals(scenario: Scenario) -> Mapping[str, KvPlannerError]:
    """The dtypes that card and release refuse for this model, each with the engine's refusal.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> list(dtype_refusals(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"})))
        ['bfloat16']
    """
    asked = ((name, _refusal(replace(scenario, dtype=name), "dtype")) for name in DTYPES)
    return {name: error for name, error in asked if error is not None}


@cached_answer
def kv_cache_dtypes(scenario: Scenario) -> tuple[str, ...]:
    """The KV cache dtypes offered first that card and release accept, and the present one.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> kv_cache_dtypes(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"}))
        ('auto',)
    """
    return _offered(scenario, "kv_cache_dtype", KV_CACHE_DTYPES, scenario.kv_cache_dtype)


def known_precisions(scenario: Scenario) -> tuple[str, ...]:
    """The weight precisions offered for an engine: the checkpoint's, the engine's own, vLLM's.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> known_precisions(scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"}))
        ('auto', 'ascend', 'fp8', 'bitsandbytes')
    """
    return (CHECKPOINT, *engine_of(scenario).facts.weight_precisions, *FLAGS["quantization"].common)


@cached_answer
def weight_precisions(scenario: Scenario) -> tuple[str, ...]:
    """The weight precisions that card and release accept for this checkpoint, and the present one."""
    known = tuple(name for name in known_precisions(scenario)[1:] if _is_counted(scenario, name))
    named = _offered(scenario, "quantization", known, scenario.quantization or CHECKPOINT)
    return tuple(dict.fromkeys((CHECKPOINT, *named)))


def _is_counted(scenario: Scenario, quantization: str) -> bool:
    """Whether the bytes of the model's weights at that precision are known; other refusals do not count."""
    try:
        check(replace(scenario, quantization=quantization))
    except KvPlannerError as error:
        return error.code != "unknown-quantization"
    return True


def _offered(scenario: Scenario, field: str, values: tuple[str, ...], now: str) -> tuple[str, ...]:
    refused = refused_values(scenario, field, values)
    return tuple(value for value in dict.fromkeys((*values, now)) if value not in refused or value == now)


def context_lengths(model_limit: int, present: int) -> tuple[int, ...]:
    """Round lengths for a slider, up to twice the model's own limit, and `present`, so that the slider can show it.

    Example:
        >>> context_lengths(40960, 8192)
        (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 40960, 65536)
        >>> context_lengths(8192, 5904)
        (256, 512, 1024, 2048, 4096, 5904, 8192, 16384)
    """
    top = max(2 * model_limit, present, SHORTEST_LENGTH)
    powers = {1 << power for power in range(8, 24) if 1 << power <= top}
    return tuple(sorted({*powers, present, *((model_limit,) if model_limit >= SHORTEST_LENGTH else ())}))


def length_from_text(text: str) -> int | None:
    """The context length in tokens in a text, None where it is no length: `32768`, `32,768`, `32k`, `32K`.

    Example:
        >>> length_from_text("32,768"), length_from_text(" 32k "), length_from_text("32K"), length_from_text("-5")
        (32768, 32000, 32768, None)
    """
    plain = re.sub(r"(?<=\d)[,_](?=\d{3}(?!\d))", "", text.strip())
    length = read_whole(unquoted(plain), FLAGS["max_model_len"])
    return length if length is not None and 0 < length <= MAX_TOKENS else None


def nearest_below(value: int, options: Sequence[int]) -> int:
    """The largest option that is not above `value`, else the smallest.

    Example:
        >>> nearest_below(5900, (1024, 4096, 8192))
        4096
    """
    return max((option for option in options if option <= value), default=options[0])


def engine_versions(engine: str) -> tuple[str, ...]:
    """The known releases of an engine, newest first.

    Example:
        >>> "0.19.0" in engine_versions("vllm")
        True
    """
    return tuple(str(own) for own, _ in reversed(find_engine(engine).releases()))


def default_utilization(scenario: Scenario) -> float:
    """The default gpu_memory_utilization of the scenario's release; the newest release's where it is unknown.

    Source: vllm/config/cache.py:CacheConfig.gpu_memory_utilization (0.19.1).

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> default_utilization(scenario_from_request({"model": "Qwen/Qwen3-8B", "engine_version": "0.19.1"}))
        0.9
    """
    try:
        release = planned_release(scenario)
    except KvPlannerError:
        release = planned_release(replace(scenario, engine_version=None))
    return release.switches.gpu_memory_utilization


def main_flags(scenario: Scenario) -> tuple[str, ...]:
    """Fields that are main controls of the engine for this model; none where its config cannot be read.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "deepseek-ai/DeepSeek-V4-Flash", "accelerator": "Ascend-910B4-32GB"}
        >>> main_flags(scenario_from_request(asked))
        ('data_parallel_size', 'enable_expert_parallel')
    """
    return engine_of(scenario).facts.main_flags if has_experts(scenario) else ()


def _architecture(scenario: Scenario) -> Architecture | None:
    """The model's architecture; None where its config cannot be read."""
    try:
        return read_architecture(scenario.config)
    except KvPlannerError:
        return None


def keeps_recurrent_states(scenario: Scenario) -> bool:
    """Whether a layer of the model keeps a recurrent state; False where its config cannot be read."""
    found = _architecture(scenario)
    return found is not None and bool(traits_of(found).recurrent)


def takes_images(scenario: Scenario) -> bool:
    """Whether the model takes more than text; False where its config cannot be read."""
    found = _architecture(scenario)
    return found is not None and found.is_multimodal


def has_experts(scenario: Scenario) -> bool:
    """Whether the model is a mixture of experts; False where its config cannot be read."""
    found = _architecture(scenario)
    return found is not None and found.moe is not None


def attends_sparsely(scenario: Scenario) -> bool:
    """Whether the model's attention is sparse; False where its config cannot be read."""
    found = _architecture(scenario)
    return found is not None and traits_of(found).is_sparse


def can_restart(scenario: Scenario, planned: Plan | None) -> bool:
    """Whether a start with compiled kernels takes other memory than a first start."""
    if scenario.kernels_compiled:
        return True
    memory = planned.memory if planned is not None else None
    return memory is not None and restart_gain_bytes(memory.activations) > 0


def takes_flag(scenario: Scenario, field: str) -> bool:
    """Whether the release of `scenario` has the flag of a field.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> old = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine_version": "0.8.5"})
        >>> takes_flag(old, "max_cudagraph_capture_size")
        False
    """
    return engine_of(scenario).is_available(field, "", planned_release(scenario).version)


def state_choices(field: str, scenario: Scenario) -> tuple[str, ...]:
    """Values of a flag about recurrent states in the release of `scenario`, after `auto`, which leaves the flag out.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3.6-27B", "engine_version": "0.33.0"})
        >>> state_choices("mamba_cache_mode", scenario)
        ('auto', 'align')
    """
    engine, version, now = engine_of(scenario), planned_release(scenario).version, getattr(scenario, field)
    values = FLAGS[field].common
    return (AUTO, *(value for value in values if value == now or engine.is_available(field, value, version)))
