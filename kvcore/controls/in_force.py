"""Settings in force: everything that differs from the engine's defaults, and figures given in place of estimates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields, replace

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count, plain
from kvcore.base.parts import GIVEN
from kvcore.base.words import Words, listed
from kvcore.catalogue.models import Checkpoint
from kvcore.controls.edit import memory_override_gib, with_field
from kvcore.engines.registry import find_engine
from kvcore.flags import FLAGS, Kind, fields_of
from kvcore.model.overrides import read_overrides
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured, Parallel, Runner, Scenario, SpeculativeConfig, value_of
from kvcore.texts import LABELS
from kvcore.wire.link import catalogue_card

SHOWN_ELSEWHERE: Final = frozenset(
    ("model", "config", "checkpoint", "accelerator", "engine", "engine_version", "parallel", "kv_cache_dtype",
     "gpu_memory_utilization", "max_model_len", "wanted", "env", "surroundings", "measured")
)  # fmt: skip
"""Fields shown in the scenario line, in the chip of the measured parts, or in chips of their own."""
LORA: Final = ("enable_lora", "max_loras", "max_lora_rank", "fully_sharded_loras")
MEMORY: Final = FLAGS["accelerator.memory_gib"]
_PARTS: Final = (
    (MEMORY, "total"),
    *((FLAGS[f"measured.{part.field}"], part.estimate) for part in GIVEN),
)
"""Figures that a person may give, each with the part of a rank's memory that it replaces."""
CASES: Final = LABELS["surroundings"]
"""Names of surroundings."""
LISTED_SIZES: Final = 6
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,48}(?:\.\d{1,6}){0,3}")
"""Text without a meaning in Markdown and in tables."""


class Setting(Struct, frozen=True, kw_only=True):
    """One setting as the engine spells it, and the changes of fields that undo it."""

    field: str
    text: str
    removal: tuple[tuple[str, object], ...]


def settings_in_force(scenario: Scenario, t: Words) -> tuple[Setting, ...]:
    """The settings that neither the model, the card nor the scenario line shows.

    Each by the name that the engine gives it. A value that could be read as markup is left out; its name is shown.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "enforce_eager": True, "max_num_seqs": 16})
        >>> [setting.text for setting in settings_in_force(scenario, words(Language.ENGLISH))]
        ['max_num_seqs 16', 'enforce_eager']
    """
    return (
        *_checkpoint(scenario),
        *_memory(scenario),
        *_parallel(scenario),
        *_flags(scenario, t),
        *_environment(scenario),
        *_surroundings(scenario, t),
    )


def _checkpoint(scenario: Scenario) -> Iterator[Setting]:
    """Facts about a bundled model's checkpoint that differ from its entry."""
    entry = catalogue.bundled_model(scenario.model)
    if entry is None or entry.config != scenario.config:
        return
    for field in Checkpoint.__struct_fields__:
        value = getattr(scenario.checkpoint, field)
        if value not in (None, getattr(entry.checkpoint, field)):
            name = f"checkpoint.{field}"
            yield Setting(field=name, text=_text(name, value), removal=(("checkpoint", entry.checkpoint),))


def _memory(scenario: Scenario) -> Iterator[Setting]:
    given = _memory_gib(scenario)
    if given is not None:
        yield Setting(field=MEMORY.name, text=f"memory {plain(given)} GiB", removal=((MEMORY.name, None),))


def _memory_gib(scenario: Scenario) -> float | None:
    """The memory given in place of a bundled card's."""
    card = scenario.accelerator
    is_bundled = card is not None and catalogue_card(card) is not None
    return memory_override_gib(scenario) if is_bundled else None


def _parallel(scenario: Scenario) -> Iterator[Setting]:
    called = find_engine(scenario.engine).called
    for field in (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "enable_expert_parallel",
    ):
        value, default = getattr(scenario.parallel, field), getattr(Parallel(), field)
        if value != default:
            yield Setting(field=field, text=_text(called(field), value), removal=((field, default),))


@cache
def _defaults() -> Mapping[str, Any]:
    return {field.name: field.default for field in fields(Scenario)}


def _flags(scenario: Scenario, t: Words) -> Iterator[Setting]:
    defaults, called = _defaults(), find_engine(scenario.engine).called
    for name, default in defaults.items():
        value = getattr(scenario, name)
        if name in SHOWN_ELSEWHERE or value == default:
            continue
        removal: tuple[str, ...] = (name,)
        text = _text(called(name), value)
        if name == "kernels_compiled":
            text = t("Restart: kernels are compiled")
        elif name == "hf_overrides":
            said = read_overrides(value)
            rope = () if said.yarn is None else (f"YaRN × {plain(said.yarn.factor)}",)
            text = " ".join(("hf_overrides", *rope, *map(_plain, said.others)))
        elif name == "kv_transfer_config":
            said = json.loads(value)
            words = (said.get("kv_connector"), said.get("kv_role"))
            text = " ".join(filter(None, ("kv_transfer_config", *map(_plain, filter(None, words)))))
        elif name == "additional_config":
            text = f"additional_config {', '.join(json.loads(value))}"
        elif name == "enable_lora":
            sharded = ", fully sharded" if scenario.fully_sharded_loras else ""
            text = f"enable_lora {scenario.max_loras} × rank {scenario.max_lora_rank}{sharded}"
            removal = LORA
        elif name in LORA:
            continue
        yield Setting(field=name, text=text, removal=tuple((one, defaults[one]) for one in removal))


def _environment(scenario: Scenario) -> Iterator[Setting]:
    for name, value in scenario.env.items():
        others = {other: text for other, text in scenario.env.items() if other != name}
        text = f"{_plain(name) or 'env'}={_plain(value) or '…'}"
        yield Setting(field=f"env.{name}", text=text, removal=(("env", others),))


def _surroundings(scenario: Scenario, t: Words) -> Iterator[Setting]:
    """Surroundings that are given, each with the label of its control."""
    for flag in fields_of("surroundings").values():
        value = value_of(scenario, flag.name)
        if value is not None:
            text = plain(value) if flag.kind is Kind.NUMBER else case_name(value, t)
            said = t("{label}: {value}", label=t(flag.label), value=text)
            yield Setting(field=flag.name, text=said, removal=((flag.name, None),))


def assumed_text(planned: Plan, t: Words) -> str:
    """The assumed surroundings in one sentence; "" where nothing is assumed."""
    assumed = planned.surroundings.assumed
    if not assumed:
        return ""
    rows = fields_of("surroundings")
    cases = (
        t("{label}: {value}", label=t(rows[key].label), value=t(CASES[case])) for key, case in assumed.items()
    )
    return t("Assumed, as nothing else was said: {cases}.", cases=listed(t, cases))


def case_name(case: str, t: Words) -> str:
    """The name of a surrounding; a text that a person wrote is shown without anything that could be markup.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> case_name("pcie", words(Language.ENGLISH)), case_name("ROCm 7.2 *x*", words(Language.ENGLISH))
        ('PCIe without P2P', 'ROCm 7.2 …')
    """
    return t(CASES[case]) if case in CASES else " ".join(_plain(word) or "…" for word in case.split())


def _text(field: str, value: object) -> str:
    if value is True:
        return field
    if value is False:
        return f"no_{field}"
    if isinstance(value, SpeculativeConfig):
        drafted = "" if value.num_speculative_tokens is None else f" × {value.num_speculative_tokens}"
        return f"speculative_config {_plain(value.method) or '…'}{drafted}"
    if isinstance(value, Runner):
        return f"{field} {value.value}"
    if isinstance(value, tuple):
        listed = ", ".join(map(str, value[:LISTED_SIZES]))
        return f"{field} {listed}" + (", …" if len(value) > LISTED_SIZES else "")
    if isinstance(value, int):
        return f"{field} {count(value)}"
    if isinstance(value, float):
        return f"{field} {plain(value)}"
    if isinstance(value, dict):
        named = ((str(key).replace(".", "_"), number) for key, number in value.items())
        return f"{field} " + ", ".join(f"{_plain(name) or '…'} {number}" for name, number in named)
    return f"{field} {_plain(str(value)) or '…'}"


def _plain(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else ""


class OverrideStep(Struct, frozen=True, kw_only=True):
    """One figure given in place of the estimate, and the tokens of the KV cache before and after."""

    label: str
    field: str
    predicted_bytes: float
    given_bytes: float
    tokens_before: int
    tokens_after: int


def override_steps(planned: Plan) -> tuple[OverrideStep, ...]:
    """The steps from the plain estimate to `planned`, one given figure each; empty without given figures."""
    scenario = planned.scenario
    given = {flag.name: value_of(scenario, flag.name) for flag, _ in _PARTS if flag is not MEMORY}
    given[MEMORY.name] = _memory_gib(scenario)
    if planned.memory is None or all(value is None for value in given.values()):
        return ()
    bare = with_field(replace(scenario, measured=Measured()), MEMORY.name, None)
    steps: list[OverrideStep] = []
    try:
        before = plan(bare)
        for flag, name in _PARTS:
            if given[flag.name] is None:
                continue
            bare = with_field(bare, flag.name, given[flag.name])
            after = plan(bare)
            if before.memory is None or after.memory is None:
                return ()
            steps.append(
                OverrideStep(
                    label=flag.label,
                    field=flag.name,
                    predicted_bytes=getattr(before.memory, name).value,
                    given_bytes=getattr(after.memory, name).value,
                    tokens_before=before.cache.tokens if before.cache else 0,
                    tokens_after=after.cache.tokens if after.cache else 0,
                )
            )
            before = after
    except KvPlannerError:
        return ()
    return tuple(steps)
