"""The scenario as a query string, and back: complete, versioned, in the engine's own flag names.

    ?v=1&model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=8&max_model_len=8192

A name with a dot is a field of an object of the JSON contract: `measured.weights_gib`, `accelerator.memory_gib`,
`speculative_config.method`, `env.VLLM_USE_V1`. What is absent is the engine's own default. A config.json that the
catalogue does not have travels in the link (`link_config.py`), so that the link alone gives the same plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from kvcore import catalogue
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.engine.vllm.versions import assumed_version
from kvcore.errors import KvPlannerError, ScenarioError, shorten
from kvcore.evidence.log.values import unquoted
from kvcore.flags import FLAGS, Kind, LinkRule, fields_of, read_whole
from kvcore.model.config import ModelConfig
from kvcore.planning import Plan
from kvcore.quantity import Grade
from kvcore.scenario import Parallel, Scenario
from kvcore.scenario.link_config import LEFT_OUT, PACKED, encode_config, unpack
from kvcore.scenario.page_parameters import Repair, full_name, full_names, is_ours
from kvcore.scenario.request import parse_request, scenario_from_request

Found = TypeVar("Found")

VERSION: Final = "1"
MAX_UNKNOWN: Final = 20
"""Of names that are named one by one: a link with more is not one of ours."""

START: Final[Mapping[str, Any]] = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 1,
    "max_model_len": 8192,
}
"""What a visit without a link begins with: something that works, and something obvious to pull."""

_JSON_TEXTS: Final = tuple(name for name, flag in FLAGS.items() if flag.link is LinkRule.PACKED)
_PACKED_TEXTS: Final = tuple(f"{name}{PACKED}" for name in _JSON_TEXTS)
_LEFT_OUT: Final = tuple(f"{name}{LEFT_OUT}" for name in _JSON_TEXTS if FLAGS[name].key == "config")
_CHECKPOINT: Final = tuple(fields_of("checkpoint"))
_PARALLEL: Final = tuple(field.name for field in fields(Parallel))
_PLAIN: Final = tuple(
    field.name
    for field in fields(Scenario)
    if field.name in FLAGS
    and FLAGS[field.name].kind is not Kind.OBJECT
    and field.name not in ("model", "accelerator")
)
_TEXTS: Final = (Kind.TEXT, Kind.CHOICE, Kind.TEXT_OR_OBJECT)
_KNOWN: Final = frozenset(
    (
        "v", *_PACKED_TEXTS, *_LEFT_OUT,
        *(
            name for name, flag in FLAGS.items()
            if flag.link is LinkRule.PACKED or (flag.link is not LinkRule.NEVER and flag.kind is not Kind.OBJECT)
        ),
    )
)  # fmt: skip
_INTEGER: Final = re.compile(r"-?\d{1,60}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """What a link means."""

    scenario: Scenario
    repairs: tuple[Repair, ...] = ()


def encode(scenario: Scenario) -> dict[str, str]:
    """Every field of `scenario` as parameters of a link, in reading order.

    A config.json that is too long for a link stays out, and the link says so.
    """
    params = {"v": VERSION, **_encode_model(scenario), **_encode_accelerator(scenario.accelerator)}
    for name in ("engine", "engine_version"):
        params |= _encode_plain(name, getattr(scenario, name))
    for name in _PARALLEL:
        params |= _encode_plain(name, getattr(scenario.parallel, name))
    for name in _PLAIN:
        params |= _encode_plain(name, getattr(scenario, name))
    for name in ("speculative_config", "measured"):
        part = getattr(scenario, name)
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            if isinstance(value, ModelConfig):
                written = encode_config(value, True)
                params |= {f"{name}.{key}": text for key, text in written.items()}
            elif value not in (None, ()):
                params[f"{name}.{field.name}"] = _text(value)
    for name in ("limit_mm_per_prompt", "env"):
        for key, value in (getattr(scenario, name) or {}).items():
            params[f"{name}.{key}"] = _text(value)
    return params


def written_out(plan: Plan) -> Scenario:
    """The scenario with the release and the share of the card that it is planned with: for links that are kept.

    Another default, of a later release or of this program, then changes nothing for who opens them.
    """
    scenario = plan.scenario
    version = scenario.engine_version or assumed_version(scenario)
    share = plan.resolved.gpu_memory_utilization
    return replace(scenario, engine_version=version, gpu_memory_utilization=share)


def query_string(params: Mapping[str, str]) -> str:
    """The parameters as they stand in a link that people read: slashes, commas and colons as they are."""
    return urlencode(params, quote_via=quote, safe="/:,")


def decode(params: Mapping[str, str]) -> Decoded:
    """The scenario of a link. Never raises: what cannot be used is left out, and named once in `repairs`."""
    repairs: list[Repair] = []
    given, again = full_names(params)
    repairs.extend(
        _repair(ScenarioError("named-twice", field=full_name(name), value=params[name]), params, name)
        for name in again
    )
    if given.get("v", VERSION) != VERSION:
        repairs.append(
            _repair(ScenarioError("unknown-link-version", field="v", value=given["v"]), given, "v")
        )
    unknown = sorted(name for name in set(given) - _KNOWN if not name.startswith("env."))
    unknown_names = [name for name in params if full_name(name) in unknown and is_ours(name)]
    repairs.extend(
        _repair(ScenarioError("unknown-parameter", field=name), params, name)
        for name in unknown_names[:MAX_UNKNOWN]
    )
    for name in unknown:
        del given[name]
    given.pop("v", None)
    repairs.extend(_left_out(given))
    scenario = None
    while scenario is None:
        try:
            scenario = _scenario(given)
        except KvPlannerError as error:
            blamed = _blamed(error, given)
            repairs.extend(_repair(error, given, name) for name in blamed)
            for name in blamed:
                del given[name]
    used = encode(scenario)
    return Decoded(
        scenario=scenario,
        repairs=tuple(replace(repair, used=used.get(repair.field, "")) for repair in repairs),
    )


def carries_configs(scenario: Scenario) -> bool:
    """Whether the link has every config.json that the plan needs."""
    return not any(mark in encode(scenario) for mark in _LEFT_OUT)


def is_scenario(params: Mapping[str, str]) -> bool:
    """Whether a query string says anything about a scenario."""
    return any(full_name(name) in _KNOWN for name in params if is_ours(name))


def _repair(error: KvPlannerError, given: Mapping[str, str], name: str) -> Repair:
    text = given.get(name, "")
    if name == error.field and error.value is not None:
        # The error quotes what the text was read as: 1000000000.0 for 1e9.
        params = {key: value for key, value in error.params.items() if key != "value"}
        error = type(error)(error.code, field=error.field, value=text, **params)
    return Repair(field=shorten(name, 60), given=shorten(text, 60), used="", error=error)


def _left_out(given: dict[str, str]) -> list[Repair]:
    """Takes the marks of a config.json that was too long out of `given`, and what it was the config of."""
    repairs = []
    for mark in _LEFT_OUT:
        model = f"{mark.removesuffix(LEFT_OUT).removesuffix('config')}model"
        if given.pop(mark, None) is not None:
            name = given.pop(model, "config.json")
            error = ScenarioError("config-not-in-link", field=model, value=name)
            repairs.append(_repair(error, {model: name}, model))
    return repairs


def _blamed(error: KvPlannerError, given: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters that `error` is about: the field itself, else its parts, else what the model was read from."""
    head = error.field.partition(".")[0]
    candidates = (
        [error.field] if error.field in given else [name for name in given if name.partition(".")[0] == head]
    )
    if not candidates:
        read_from = ("config", "config.z", "hf_quant_config", "hf_quant_config.z", "model")
        candidates = [name for name in read_from if name in given]
    return tuple(candidates or given)


def _scenario(given: Mapping[str, str]) -> Scenario:
    request: dict[str, Any] = {name: START[name] for name in ("model", "accelerator")}
    for name, text in given.items():
        head, dot, tail = name.partition(".")
        if name in _PACKED_TEXTS:
            value: object = parse_request(unpack(text, name))
            head, dot, tail = name.removesuffix(PACKED).partition(".")
        else:
            value = parse_request(text) if name in _JSON_TEXTS else _value(name, text)
        if not dot:
            request[head] = value
        elif head != "accelerator":
            request.setdefault(head, {})[tail] = value
    memory_gib = _value("", given["accelerator.memory_gib"]) if "accelerator.memory_gib" in given else None
    if "accelerator" in given or ("accelerator.name" not in given and "accelerator.vendor" not in given):
        scenario = scenario_from_request(request)
        return scenario if memory_gib is None else with_memory(scenario, memory_gib)
    facts = {
        name: given[f"accelerator.{name}"]
        for name in ("name", "vendor", "interconnect")
        if f"accelerator.{name}" in given
    }
    request["accelerator"] = facts | ({} if memory_gib is None else {"memory_gib": memory_gib})
    scenario = scenario_from_request(request)
    card = scenario.accelerator or catalogue.find_accelerator(START["accelerator"])
    return replace(scenario, accelerator=catalogue_card(card) or card)


def with_memory(scenario: Scenario, memory_gib: object) -> Scenario:
    """The scenario on a card with the memory that the person gives, in GiB as the driver reports it."""
    card = scenario.accelerator
    if card is None:
        return scenario
    low, high = FLAGS["accelerator.memory_gib"].bounds
    if (
        isinstance(memory_gib, bool)
        or not isinstance(memory_gib, int | float)
        or not low <= memory_gib <= high
    ):
        raise ScenarioError(
            "invalid-value",
            field="accelerator.memory_gib",
            value=memory_gib,
            reason=f"it must lie between {low:g} and {high:g}",
        )
    return replace(
        scenario,
        accelerator=replace(card, memory_gib=float(memory_gib), memory_grade=Grade.MEASURED, source=""),
    )


def catalogue_card(card: Accelerator) -> Accelerator | None:
    """The catalogue's card of the same id, or None."""
    return _found(catalogue.find_accelerator, card.id)


def _encode_model(scenario: Scenario) -> dict[str, str]:
    entry = _found(catalogue.find_model, scenario.model)
    params = {"model": scenario.model}
    known_checkpoint = Checkpoint()
    if entry is not None and entry.config == scenario.config:
        known_checkpoint = entry.checkpoint
    else:
        params |= encode_config(scenario.config)
    for name in _CHECKPOINT:
        value = getattr(scenario.checkpoint, name)
        if value is not None and value != getattr(known_checkpoint, name):
            params[f"checkpoint.{name}"] = _text(value)
    return params


def _encode_accelerator(card: Accelerator | None) -> dict[str, str]:
    if card is None:
        return {}
    known = catalogue_card(card)
    if known == card:
        return {"accelerator": card.id}
    memory = {"accelerator.memory_gib": _text(card.memory_gib)}
    if known is not None:
        return {"accelerator": card.id, **memory}
    # A memory that was read from the name is read from it again.
    is_given = card.memory_grade is Grade.MEASURED
    facts = card.memory_gib if is_given else None, card.vendor.value, card.name
    link = {"accelerator.interconnect": card.interconnect.value}
    is_derived = catalogue.accelerator_from_facts(*facts).interconnect is card.interconnect
    return {
        "accelerator.name": card.name,
        "accelerator.vendor": card.vendor.value,
        **(memory if is_given else {}),
        **({} if is_derived else link),
    }


def _encode_plain(name: str, value: object) -> dict[str, str]:
    flag = FLAGS[name]
    if value is None or (value == flag.default and flag.link is not LinkRule.ALWAYS):
        return {}
    if name == "max_model_len" and value == -1:
        return {name: "auto"}
    return {name: _text(value)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def _value(name: str, text: str) -> object:
    """The JSON value that a parameter's text stands for; the request's own checks judge it."""
    flag = FLAGS.get(name)
    if name.startswith("env.") or (flag is not None and flag.kind in _TEXTS):
        return text
    if flag is not None and flag.kind is Kind.NAMES:
        return text.split(",")
    if flag is not None and flag.kind is Kind.INTEGERS:
        words = text.split(",")
        return list(map(int, words)) if all(map(_INTEGER.fullmatch, words)) else text
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if flag is not None and flag.human:
        whole = read_whole(unquoted(text), flag)
        return text if whole is None else whole
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _found(find: Callable[[str], Found], name: str) -> Found | None:
    try:
        return find(name)
    except KvPlannerError:
        return None
