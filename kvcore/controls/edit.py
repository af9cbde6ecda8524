"""What a control may offer for a scenario, and the scenario that it makes: one field changed, and what follows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import MEASURED_FIELDS
from kvcore.base.quantity import Grade
from kvcore.base.untrusted import unquoted
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.controls.additional import with_key
from kvcore.engines.registry import find_engine, with_accelerator
from kvcore.engines.vllm.additional import FIELD as ADDITIONAL
from kvcore.engines.vllm.availability import is_available
from kvcore.engines.vllm.start import traits_of
from kvcore.engines.vllm.versions import knows_release, planned_release, releases_of
from kvcore.evidence.carry import carried_over, carried_to_model
from kvcore.flags import FLAGS, read_whole
from kvcore.memory.activations import restart_gain_bytes
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.planning import Plan, check
from kvcore.scenario import (
    AUTO,
    PARALLEL,
    Origin,
    Runner,
    Scenario,
    value_of,
    without_state_flags,
)
from kvcore.scenario.answers import kept_answer
from kvcore.wire.link import catalogue_card, with_memory
from kvcore.wire.request import read_fields, with_surroundings

_OBJECTS: Final = ("mm_processor_kwargs", "surroundings")
"""Whose fields have controls of their own."""
_MEASURED = frozenset(f"measured.{part}" for part in MEASURED_FIELDS)


class Adjusted(Struct, frozen=True, kw_only=True):
    """A scenario with another model, and the fields that had to follow it."""

    scenario: Scenario
    fields: tuple[str, ...] = ()


def with_field(scenario: Scenario, field: str, value: object) -> Scenario:
    """`scenario` with one field changed; None takes the default.

    Measured parts follow the change as the estimate does. Another accelerator drops the exact memory, and brings the
    engine that runs there. Raises a KvPlannerError for an unknown accelerator or engine.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> start = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
        >>> with_field(start, "tensor_parallel_size", 2).parallel.tensor_parallel_size
        2
    """
    return carried_over(scenario, _changed(scenario, field, value))


def with_card(scenario: Scenario, card: Accelerator) -> Scenario:
    """`scenario` on `card`, which the catalogue need not have; measured parts follow as for any other change."""
    return carried_over(scenario, with_accelerator(scenario, card))


def _changed(scenario: Scenario, field: str, value: object) -> Scenario:
    if field == "accelerator":
        return with_accelerator(scenario, catalogue.find_accelerator(str(value)))
    if field == "accelerator.memory_gib":
        return _with_memory(scenario, value)
    head, _, key = field.partition(".")
    if head in _OBJECTS and key:
        return _with_inner(scenario, head, key, value)
    if head == ADDITIONAL and key:
        return with_key(scenario, field, value)
    changes: dict[str, Any] = {field: value}
    if field == "max_cudagraph_capture_size":
        # A list and another maximum stop the start; what the person sets last stands.
        changes["cudagraph_capture_sizes"] = None
    if field == "engine" and not knows_release(find_engine(str(value)).name, scenario.engine_version):
        changes["engine_version"] = None
    if field in PARALLEL:
        return replace(scenario, parallel=replace(scenario.parallel, **changes))
    if field in _MEASURED:
        name = field.removeprefix("measured.")
        own = scenario.measured.with_origin((name,), Origin.MEASURED)
        if name == "peak_activation_gib":
            own = replace(own, batched_tokens=None)
        return replace(scenario, measured=replace(own, **{name: changes[field]}))
    return replace(scenario, **changes)


def _with_inner(scenario: Scenario, head: str, key: str, value: object) -> Scenario:
    """`scenario` with one field of an object changed; None takes it out."""
    if head == "surroundings":
        return with_surroundings(scenario, {key: value})
    read = read_fields({key: value}, head)
    others = {name: one for name, one in (value_of(scenario, head) or {}).items() if name != key}
    return replace(scenario, mm_processor_kwargs={**others, **read} or None)


def engine_followed(before: Scenario, after: Scenario) -> bool:
    """Whether the engine changed with the accelerator."""
    return before.accelerator != after.accelerator and before.engine != after.engine


def with_model(scenario: Scenario, model: str, config: ModelConfig, checkpoint: Checkpoint) -> Adjusted:
    """`scenario` with another model; a tensor parallel size or a length that it does not take follows it.

    The runner and flags about recurrent states are left to the engine again. What was measured of the model goes, what
    was measured of the machine stays.
    Raises ModelError where the config cannot be read exactly.
    """
    limit = read_architecture(config).max_model_len
    other = replace(
        without_state_flags(scenario), model=model, config=config, checkpoint=checkpoint, runner=Runner.AUTO
    )
    changed = carried_to_model(scenario, other)
    followed = []
    size = nearest_tensor_parallel_size(changed)
    if size != changed.parallel.tensor_parallel_size:
        changed = with_field(changed, "tensor_parallel_size", size)
        followed.append("tensor_parallel_size")
    if changed.max_model_len is not None and changed.max_model_len > limit:
        changed = replace(changed, max_model_len=limit)
        followed.append("max_model_len")
    return Adjusted(scenario=changed, fields=tuple(followed))


def _with_memory(scenario: Scenario, memory_gib: object) -> Scenario:
    if memory_gib is not None:
        return with_memory(scenario, memory_gib)
    card = scenario.accelerator
    known = catalogue_card(card) if card is not None else None
    return scenario if known is None else replace(scenario, accelerator=known)


def memory_override_gib(scenario: Scenario) -> float | None:
    """The memory per card that the person gave in place of the catalogue's, in GiB."""
    card = scenario.accelerator
    if card is None or card.memory_grade is not Grade.MEASURED:
        return None
    known = catalogue_card(card)
    return card.memory_gib if known is None or known.memory_gib != card.memory_gib else None


TENSOR_PARALLEL_SIZES: Final = (1, 2, 4, 8, 16)
KV_CACHE_DTYPES: Final = FLAGS["kv_cache_dtype"].common
"""Offered first; every other one the engine knows is in the full list."""
CHECKPOINT: Final = "auto"
"""Weights as the checkpoint stores them: no `--quantization`."""
SHORTEST_LENGTH: Final = 256
MAX_TOKENS: Final = 1 << 30


@kept_answer
def tensor_parallel_sizes(scenario: Scenario) -> tuple[int, ...]:
    """The tensor parallel sizes that the engine takes for this model, the present one among them if it does."""
    sizes = sorted({*TENSOR_PARALLEL_SIZES, scenario.parallel.tensor_parallel_size})
    return tuple(size for size in sizes if refusal(scenario, size) is None)


def nearest_tensor_parallel_size(scenario: Scenario) -> int:
    """The scenario's own size where the engine takes it, else the largest valid one below it, else the smallest."""
    wanted = scenario.parallel.tensor_parallel_size
    if refusal(scenario, wanted) is None:
        return wanted
    return nearest_below(wanted, tensor_parallel_sizes(scenario) or (wanted,))


def refusal(scenario: Scenario, tensor_parallel_size: int) -> KvPlannerError | None:
    """Why the engine refuses a tensor parallel size, or None; a refusal of another field is not about the size."""
    parallel = replace(scenario.parallel, tensor_parallel_size=tensor_parallel_size)
    return _refusal(replace(scenario, parallel=parallel), "tensor_parallel_size")


def _refusal(scenario: Scenario, field: str) -> KvPlannerError | None:
    try:
        check(scenario)
    except KvPlannerError as error:
        return error if error.field == field else None
    return None


def refused_values(scenario: Scenario, field: str, values: Sequence[str | None]) -> frozenset[str | None]:
    """Which of `values` card and release refuse for `field`, a flag that the engine judges before it looks at memory.

    A refusal of another field is not about the value.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> old = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"})
        >>> sorted(refused_values(old, "kv_cache_dtype", ("auto", "fp8", "nvfp4")))
        ['fp8', 'nvfp4']
    """
    return frozenset(value for value in values if _refusal(replace(scenario, **{field: value}), field))


@kept_answer
def kv_cache_dtypes(scenario: Scenario) -> tuple[str, ...]:
    """The KV cache dtypes offered first that card and release take, and the present one.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> kv_cache_dtypes(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"}))
        ('auto',)
    """
    return _offered(scenario, "kv_cache_dtype", KV_CACHE_DTYPES, scenario.kv_cache_dtype)


def known_precisions(scenario: Scenario) -> tuple[str, ...]:
    """The weight precisions that are offered on the engine: as the checkpoint has them, its own, those of vLLM.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> known_precisions(scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"}))
        ('auto', 'ascend', 'fp8', 'bitsandbytes')
    """
    return (CHECKPOINT, *find_engine(scenario.engine).weight_precisions, *FLAGS["quantization"].common)


@kept_answer
def weight_precisions(scenario: Scenario) -> tuple[str, ...]:
    """The weight precisions that card and release take for this checkpoint, and the present one."""
    known = tuple(name for name in known_precisions(scenario)[1:] if _is_counted(scenario, name))
    named = _offered(scenario, "quantization", known, scenario.quantization or CHECKPOINT)
    return tuple(dict.fromkeys((CHECKPOINT, *named)))


def _is_counted(scenario: Scenario, quantization: str) -> bool:
    """Whether the bytes of the model's weights in it are known; a refusal of a card or release is none of its own."""
    try:
        check(replace(scenario, quantization=quantization))
    except KvPlannerError as error:
        return error.code != "unknown-quantization"
    return True


def _offered(scenario: Scenario, field: str, values: tuple[str, ...], now: str) -> tuple[str, ...]:
    refused = refused_values(scenario, field, values)
    return tuple(value for value in dict.fromkeys((*values, now)) if value not in refused or value == now)


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


def default_utilization(scenario: Scenario) -> float:
    """The share of the card that the scenario's release takes while no flag says another; the newest one's where it
    names a release that nobody knows.

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


REPLICAS: Final = (1, 2, 4, 8)
"""Data parallel sizes offered first."""


def main_flags(scenario: Scenario) -> tuple[str, ...]:
    """Fields that the engine has among its main ones for this model; none where its config cannot be read.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "deepseek-ai/DeepSeek-V4-Flash", "accelerator": "Ascend-910B4-32GB"}
        >>> main_flags(scenario_from_request(asked))
        ('data_parallel_size', 'enable_expert_parallel')
    """
    return find_engine(scenario.engine).main_flags if has_experts(scenario) else ()


def keeps_recurrent_states(scenario: Scenario) -> bool:
    """Whether some layer of the model keeps a recurrent state; False where its config cannot be read."""
    try:
        return bool(traits_of(read_architecture(scenario.config)).recurrent)
    except KvPlannerError:
        return False


def takes_images(scenario: Scenario) -> bool:
    """Whether the model takes more than text; False where its config cannot be read."""
    try:
        return read_architecture(scenario.config).is_multimodal
    except KvPlannerError:
        return False


def has_experts(scenario: Scenario) -> bool:
    """Whether the model is a mixture of experts; False where its config cannot be read."""
    try:
        return read_architecture(scenario.config).moe is not None
    except KvPlannerError:
        return False


def attends_sparsely(scenario: Scenario) -> bool:
    """Whether the model's attention is sparse; False where its config cannot be read."""
    try:
        return traits_of(read_architecture(scenario.config)).is_sparse
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
        >>> from kvcore.wire.request import scenario_from_request
        >>> old = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine_version": "0.8.5"})
        >>> takes_flag(old, "max_cudagraph_capture_size")
        False
    """
    return is_available(field, "", planned_release(scenario).version)


def state_choices(field: str, scenario: Scenario) -> tuple[str, ...]:
    """What a flag about recurrent states takes in the release of `scenario`, after `auto`, which leaves the flag out.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3.6-27B", "engine_version": "0.33.0"})
        >>> state_choices("mamba_cache_mode", scenario)
        ('auto', 'align')
    """
    version, now = planned_release(scenario).version, getattr(scenario, field)
    values = FLAGS[field].common
    return (AUTO, *(value for value in values if value == now or is_available(field, value, version)))
