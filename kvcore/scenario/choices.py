"""What a control may offer for a scenario: only values that the engine takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvcore.engine.vllm.availability import is_available
from kvcore.engine.vllm.backends import traits_of
from kvcore.engine.vllm.versions import planned_release, releases_of
from kvcore.errors import KvPlannerError
from kvcore.evidence.log.dictionaries import unquoted
from kvcore.flags.registry import FLAGS, read_whole
from kvcore.memory.activations import restart_gain_bytes
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, plan
from kvcore.scenario import AUTO, Scenario

TENSOR_PARALLEL_SIZES: Final = (1, 2, 4, 8, 16)
KV_CACHE_DTYPES: Final = FLAGS["kv_cache_dtype"].common
"""Offered first; every other one the engine knows is in the full list."""
CHECKPOINT: Final = "auto"
"""Weights as the checkpoint stores them: no `--quantization`."""
WEIGHT_PRECISIONS: Final = (CHECKPOINT, *FLAGS["quantization"].common)
SHORTEST_LENGTH: Final = 256
MAX_TOKENS: Final = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestSize:
    """The tensor parallel size to plan with, and the refusal of the one that was asked for."""

    value: int
    refused: KvPlannerError | None = None


def tensor_parallel_sizes(scenario: Scenario) -> tuple[int, ...]:
    """The tensor parallel sizes that the engine takes for this model, the present one among them if it does."""
    sizes = sorted({*TENSOR_PARALLEL_SIZES, scenario.parallel.tensor_parallel_size})
    return tuple(size for size in sizes if refusal(scenario, size) is None)


def nearest_tensor_parallel_size(scenario: Scenario) -> NearestSize:
    """The scenario's own size where the engine takes it, else the largest valid one below it, else the smallest."""
    wanted = scenario.parallel.tensor_parallel_size
    refused = refusal(scenario, wanted)
    if refused is None:
        return NearestSize(value=wanted)
    valid = tensor_parallel_sizes(scenario)
    if not valid:
        return NearestSize(value=wanted)
    return NearestSize(
        value=max((size for size in valid if size < wanted), default=valid[0]), refused=refused
    )


def refusal(scenario: Scenario, tensor_parallel_size: int) -> KvPlannerError | None:
    """Why the engine refuses a tensor parallel size, or None; a refusal of another field is not about the size."""
    try:
        plan(
            replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=tensor_parallel_size))
        )
    except KvPlannerError as error:
        return error if error.field == "tensor_parallel_size" else None
    return None


def refused_values(scenario: Scenario, field: str, values: Sequence[str | None]) -> frozenset[str | None]:
    """Which of `values` card and release refuse for `field`; a refusal of another field is not about the value.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> old = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"})
        >>> sorted(refused_values(old, "kv_cache_dtype", ("auto", "fp8", "nvfp4")))
        ['fp8', 'nvfp4']
    """
    found = set()
    for value in values:
        try:
            plan(replace(scenario, **{field: value}))  # type: ignore[arg-type]
        except KvPlannerError as error:
            if error.field == field:
                found.add(value)
    return frozenset(found)


def kv_cache_dtypes(scenario: Scenario) -> tuple[str, ...]:
    """The KV cache dtypes offered first that card and release take, and the present one.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> kv_cache_dtypes(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"}))
        ('auto',)
    """
    refused, now = refused_values(scenario, "kv_cache_dtype", KV_CACHE_DTYPES), scenario.kv_cache_dtype
    return tuple(
        value for value in dict.fromkeys((*KV_CACHE_DTYPES, now)) if value not in refused or value == now
    )


def weight_precisions(scenario: Scenario) -> tuple[str, ...]:
    """The weight precisions that card and release take for this checkpoint, and the present one."""
    now = scenario.quantization or CHECKPOINT
    refused = refused_values(scenario, "quantization", tuple(v for v in WEIGHT_PRECISIONS if v != CHECKPOINT))
    return tuple(
        value for value in dict.fromkeys((*WEIGHT_PRECISIONS, now)) if value not in refused or value == now
    )


def context_lengths(model_limit: int, present: int) -> tuple[int, ...]:
    """Round lengths for a slider, up to twice the model's own limit, and `present`, which it has to show.

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
    """The context length in tokens that a person wrote, None where it is none: `32768`, `32,768`, `32k`, `32K`.

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
    return tuple(str(own) for own, _ in reversed(releases_of(engine)))


def keeps_recurrent_states(scenario: Scenario) -> bool:
    """Whether some layer of the model keeps a recurrent state; False where its config cannot be read."""
    try:
        return bool(traits_of(read_architecture(scenario.config)).recurrent)
    except KvPlannerError:
        return False


def can_restart(scenario: Scenario, planned: Plan | None) -> bool:
    """Whether it matters that the start finds its kernels compiled."""
    if scenario.kernels_compiled:
        return True
    memory = planned.memory if planned is not None else None
    return memory is not None and restart_gain_bytes(memory.activations) > 0


def takes_flag(scenario: Scenario, field: str) -> bool:
    """Whether the release of `scenario` has the flag of that field at all.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> old = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine_version": "0.8.5"})
        >>> takes_flag(old, "max_cudagraph_capture_size")
        False
    """
    return is_available(field, "", planned_release(scenario).version)


def mamba_cache_modes(scenario: Scenario) -> tuple[str, ...]:
    """What `--mamba-cache-mode` takes in the release of `scenario`, after `auto`, which leaves the flag out.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> mamba_cache_modes(scenario_from_request({"model": "Qwen/Qwen3.6-27B", "engine_version": "0.33.0"}))
        ('auto', 'align')
    """
    return (AUTO, *_taken("mamba_cache_mode", FLAGS["mamba_cache_mode"].common, scenario))


def mamba_dtypes(field: str, scenario: Scenario) -> tuple[str, ...]:
    """What `mamba_cache_dtype` or `mamba_ssm_cache_dtype` takes in the release of `scenario`."""
    return (AUTO, *_taken(field, FLAGS[field].common, scenario))


def _taken(field: str, values: tuple[str, ...], scenario: Scenario) -> tuple[str, ...]:
    version = planned_release(scenario).version
    now = getattr(scenario, field)
    return tuple(value for value in values if value == now or is_available(field, value, version))
