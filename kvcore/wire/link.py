"""The scenario as a query string, and back: complete, versioned, in the engine's own flag names.

    ?v=1&model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=8&max_model_len=8192

A name with a dot is a field of an object of the JSON contract: `measured.weights_gib`, `accelerator.memory_gib`,
`speculative_config.method`, `env.VLLM_USE_V1`. A parameter that is absent has the engine's own default. A config.json
that the catalogue does not have is part of the link, so that the link alone gives the same plan:

    config={"model_type":…}         readable
    config.z=eNqrVsosS81TslJQ…      the same text, zlib and base64url
    config.left_out=true            too long for a link: the page says so to whoever opens it

A pinned scenario is a link of its own inside it, `pin.1=v%3D1%26model%3D…`, and is read like any other.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError, ScenarioError, out_of_bounds
from kvcore.base.kept import kept
from kvcore.base.quantity import Grade
from kvcore.base.untrusted import MAX_UNPACKED_BYTES, pack, parse_json_object, unpack, unquoted
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.models import Checkpoint
from kvcore.engines.registry import engine_of
from kvcore.flags import FLAGS, Kind, LinkRule, fields_of, read_whole
from kvcore.model.config import ModelConfig
from kvcore.model.overrides import read_overrides
from kvcore.planning import Plan
from kvcore.scenario import KEPT_AS_JSON, PARALLEL, Scenario, value_of
from kvcore.wire.fields import Fields
from kvcore.wire.link_names import Repair, full_name, full_names, is_ours
from kvcore.wire.request import scenario_from_request

VERSION: Final = "1"
MAX_UNKNOWN: Final = 20
"""Most unknown names that are named one by one: a link with more is not one of ours."""

PACKED: Final = ".z"
"""Ends the name of a parameter with a deflated text, in base64url."""
LEFT_OUT: Final = ".left_out"
"""Ends the name of a parameter that stands for a text too long for a link."""
MAX_PLAIN_CHARACTERS: Final = 2000
"""Longest readable config.json, percent-encoded."""
MAX_CONFIG_CHARACTERS: Final = 6000
"""Longest config.json in either form; proxies cut request lines at 8 KiB."""
MAX_PINS: Final = 4
MAX_PIN_CHARACTERS: Final = 3000
"""Longest pin, before the outer link encodes it again; proxies cut request lines at 8 KiB."""
MAX_PIN_FIELDS: Final = 80
PIN: Final = "pin."
PIN_NAMES: Final = tuple(f"{PIN}{number}" for number in range(1, MAX_PINS + 1))

START: Final[Mapping[str, Any]] = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 1,
    "max_model_len": 8192,
}
"""The scenario of a visit without a link: one that works, with an obvious control to move."""

_JSON_TEXTS: Final = tuple(name for name, flag in FLAGS.items() if flag.link is LinkRule.PACKED)
_PACKED_TEXTS: Final = tuple(f"{name}{PACKED}" for name in _JSON_TEXTS)
_LEFT_OUT: Final = tuple(f"{name}{LEFT_OUT}" for name in _JSON_TEXTS if FLAGS[name].key == "config")
_CHECKPOINT: Final = tuple(fields_of("checkpoint"))
_PLAIN: Final = tuple(
    name
    for name in Scenario.__struct_fields__
    if name in FLAGS and FLAGS[name].kind is not Kind.OBJECT and name not in ("model", "accelerator")
)
_TEXTS: Final = (Kind.TEXT, Kind.CHOICE, Kind.TEXT_OR_OBJECT)
_KNOWN: Final = frozenset(
    ("v", *_JSON_TEXTS, *_PACKED_TEXTS, *_LEFT_OUT, *(
        name for name, flag in FLAGS.items() if flag.link is not LinkRule.NEVER and flag.kind is not Kind.OBJECT
    ))
)  # fmt: skip
_MODEL_SOURCES: Final = (
    *(name + end for name in ("config", "hf_quant_config", "headers") for end in ("", PACKED)), "model",
)  # fmt: skip
_INTEGER: Final = re.compile(r"-?\d{1,60}")


class Decoded(Struct, frozen=True, kw_only=True):
    """The scenario of a link, and its repairs."""

    scenario: Scenario
    repairs: tuple[Repair, ...] = ()
    lost_model: Repair | None = None
    """Why the link's own model cannot be planned, where it names one: the scenario has that of the start."""


def encode(scenario: Scenario) -> dict[str, str]:
    """The fields of `scenario` as parameters of a link, in reading order.

    A config.json that is too long for a link is left out, and the link says so.
    """
    params = {"v": VERSION, **_encode_model(scenario), **_encode_accelerator(scenario.accelerator)}
    for name in ("engine", "engine_version", *PARALLEL, *_PLAIN):
        params |= _encode_plain(name, value_of(scenario, name))
    for name in ("speculative_config", "surroundings", "measured"):
        part = getattr(scenario, name)
        for field in part.__struct_fields__ if part is not None else ():
            value = getattr(part, field)
            if isinstance(value, ModelConfig):
                written = encode_config(value, True)
                params |= {f"{name}.{key}": text for key, text in written.items()}
            elif value not in (None, ()):
                params[f"{name}.{field}"] = _text(value)
    for name in ("limit_mm_per_prompt", "mm_processor_kwargs", "env"):
        for key, value in (getattr(scenario, name) or {}).items():
            params[f"{name}.{key}"] = _text(value)
    params |= {name: text for name in KEPT_AS_JSON if (text := getattr(scenario, name)) is not None}
    return params


def written_out(plan: Plan) -> Scenario:
    """The scenario with the release and the share of the card of its plan written out, for links that are kept.

    Later changes of defaults then do not change the plan of the link. Where several releases are possible both stay
    open: written out they would change the interval, and perhaps the verdict.
    """
    scenario = plan.scenario
    if scenario.engine_version is None and engine_of(scenario).facts.unstated is not None:
        return scenario
    version = scenario.engine_version or engine_of(scenario).assumed_version(scenario)
    share = plan.resolved.gpu_memory_utilization
    return replace(scenario, engine_version=version, gpu_memory_utilization=share)


def query_string(params: Mapping[str, str]) -> str:
    """The parameters as a readable query string: slashes, commas and colons are not encoded."""
    return urlencode(params, quote_via=quote, safe="/:,")


def decode(params: Mapping[str, str], beside: Container[str] = ()) -> Decoded:
    """The scenario of a link. Never raises: what cannot be used is left out, and named once in `repairs`.

    `beside` are names that a page keeps in the same link.
    """
    given, again = full_names(params, beside)
    repairs = [
        _repair(ScenarioError("named-twice", field=full_name(name), value=params[name]), params, name)
        for name in again
    ]
    version = given.pop("v", VERSION)
    if version != VERSION:
        error = ScenarioError("unknown-link-version", field="v", value=version)
        repairs.append(Repair.of("v", version, error))
    unknown = {name for name in given if name not in _KNOWN and not name.startswith("env.")}
    unknown_names = [name for name in params if full_name(name) in unknown and is_ours(name, beside)]
    repairs += [
        Repair.of(name, params[name], ScenarioError("unknown-parameter", field=name))
        for name in unknown_names[:MAX_UNKNOWN]
    ]
    for name in unknown:
        del given[name]
    beyond = [name for name in params if name.startswith(PIN) and name not in PIN_NAMES]
    repairs += [
        Repair.of(name, params[name], ScenarioError("pin-not-read", field=name, last=PIN_NAMES[-1]))
        for name in beyond[:MAX_UNKNOWN]
    ]
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
    lost = [repair for repair in repairs if repair.field in _MODEL_SOURCES and repair.field not in given]
    if any(name in given for name in _MODEL_SOURCES):
        lost = []
    return Decoded(
        scenario=scenario,
        repairs=tuple(replace(repair, used=used.get(repair.field, "")) for repair in repairs),
        lost_model=next((repair for repair in lost if repair.field == "model"), lost[0] if lost else None),
    )


def carries_configs(scenario: Scenario) -> bool:
    """Whether the link has every config.json that the plan needs."""
    return not any(mark in encode(scenario) for mark in _LEFT_OUT)


def is_scenario(params: Mapping[str, str]) -> bool:
    """Whether a query string has a parameter of a scenario."""
    return any(full_name(name) in _KNOWN for name in params if is_ours(name))


def _repair(error: KvPlannerError, given: Mapping[str, str], name: str) -> Repair:
    text = given.get(name, "")
    if name == error.field and error.value is not None:
        # The error quotes what the text was read as: 1000000000.0 for 1e9.
        params = {key: value for key, value in error.params.items() if key != "value"}
        error = type(error)(error.code, field=error.field, value=text, **params)
    return Repair.of(name, text, error)


def _left_out(given: dict[str, str]) -> list[Repair]:
    """Takes the marks of configs that were too long out of `given`, and the models that they belong to."""
    repairs = []
    for mark in _LEFT_OUT:
        model = f"{mark.removesuffix(LEFT_OUT).removesuffix('config')}model"
        if given.pop(mark, None) is not None:
            name = given.pop(model, "config.json")
            error = ScenarioError("config-not-in-link", field=model, value=name)
            repairs.append(Repair.of(model, name, error))
    return repairs


def _blamed(error: KvPlannerError, given: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters to blame for `error`: the field itself, else its parts, else those that give the model."""
    if error.field in given:
        return (error.field,)
    head = error.field.partition(".")[0]
    parts = tuple(name for name in given if name.partition(".")[0] == head)
    return parts or tuple(name for name in _MODEL_SOURCES if name in given) or tuple(given)


def _scenario(given: Mapping[str, str]) -> Scenario:
    request: dict[str, Any] = {name: START[name] for name in ("model", "accelerator")}
    for name, text in given.items():
        head, dot, tail = name.partition(".")
        if name in _PACKED_TEXTS:
            value: object = parse_json_object(unpack(text, name), field=name)
            head, dot, tail = name.removesuffix(PACKED).partition(".")
        else:
            value = parse_json_object(text, field=name) if name in _JSON_TEXTS else _value(name, text)
        if not dot:
            request[head] = value
        elif head != "accelerator":
            request.setdefault(head, {})[tail] = value
    facts = {
        key: _value(name, given[name])
        for key in fields_of("accelerator")
        if (name := f"accelerator.{key}") in given
    }
    if "accelerator" in given or not facts.keys() & {"name", "vendor"}:
        scenario = scenario_from_request(request)
        for key in facts.keys() - {"memory_gib", "interconnect"}:
            raise ScenarioError("accelerator-named-already", field=f"accelerator.{key}", value=facts[key])
        return _with_facts(scenario, facts)
    scenario = scenario_from_request({**request, "accelerator": facts})
    card = scenario.accelerator
    if card is None:  # which a request may leave open: here the error says why
        read = Fields(facts, "accelerator").read
        card = catalogue.accelerator_from_facts(read("memory_gib"), read("vendor"), read("name"))
    return replace(scenario, accelerator=catalogue_card(card) or card)


def _with_facts(scenario: Scenario, facts: Mapping[str, Any]) -> Scenario:
    """The scenario with the given memory and interconnect of its card."""
    link = Fields(facts, "accelerator").read("interconnect")
    if (memory_gib := facts.get("memory_gib")) is not None:
        scenario = with_memory(scenario, memory_gib)
    if link is None or scenario.accelerator is None:
        return scenario
    card = dataclasses.replace(scenario.accelerator, interconnect=Interconnect(link))
    return replace(scenario, accelerator=card)


def with_memory(scenario: Scenario, memory_gib: object) -> Scenario:
    """The scenario on its card with another memory, in GiB as the driver reports it."""
    card = scenario.accelerator
    if card is None:
        return scenario
    low, high = FLAGS["accelerator.memory_gib"].bounds
    given = memory_gib if isinstance(memory_gib, int | float) and memory_gib is not True else -1
    if not low <= given <= high:
        raise out_of_bounds("accelerator.memory_gib", memory_gib, float(low), float(high))
    own = dataclasses.replace(card, memory_gib=float(given), memory_grade=Grade.MEASURED, source="")
    return replace(scenario, accelerator=own)


def catalogue_card(card: Accelerator) -> Accelerator | None:
    """The catalogue's card with the same id, name or alias; None for none."""
    try:
        return catalogue.find_accelerator(card.id)
    except KvPlannerError:
        return None


def _encode_model(scenario: Scenario) -> dict[str, str]:
    entry = catalogue.bundled_model(scenario.model)
    params = {"model": scenario.model}
    known_checkpoint = Checkpoint()
    if entry is not None and _overridden(entry.config, scenario.hf_overrides) == scenario.config:
        known_checkpoint = entry.checkpoint
    else:
        params |= encode_config(scenario.config)
    for name in _CHECKPOINT:
        value = getattr(scenario.checkpoint, name)
        if value is not None and value != getattr(known_checkpoint, name):
            params[f"checkpoint.{name}"] = _text(value)
    return params


@kept
def _overridden(config: ModelConfig, overrides: str | None) -> ModelConfig:
    """`config` with the overrides that the link has as well."""
    return config if overrides is None else read_overrides(overrides).applied(config)


def encode_config(config: ModelConfig, is_draft: bool = False) -> Mapping[str, str]:
    """The parameters of a config.json: readable, deflated, or marked as left out; a draft's has no side file."""
    texts = {"config": config.text}
    if config.hf_quant_config_text and not is_draft:
        texts["hf_quant_config"] = config.hf_quant_config_text
    if config.headers is not None and not is_draft:
        texts["headers"] = config.headers.text
    size = sum(map(len, texts.values()))
    if size <= MAX_PLAIN_CHARACTERS and len(urlencode(texts)) <= MAX_PLAIN_CHARACTERS:
        return texts
    if size <= MAX_UNPACKED_BYTES:
        packed = {f"{name}{PACKED}": pack(text) for name, text in texts.items()}
        if sum(map(len, packed.values())) <= MAX_CONFIG_CHARACTERS:
            return packed
    return {f"config{LEFT_OUT}": "true"}


def _encode_accelerator(card: Accelerator | None) -> dict[str, str]:
    if card is None:
        return {}
    known = catalogue_card(card)
    if known == card:
        return {"accelerator": card.id}
    memory = {"accelerator.memory_gib": _text(card.memory_gib)}
    link = {"accelerator.interconnect": card.interconnect.value}
    if known is not None:
        is_own = dataclasses.replace(card, interconnect=known.interconnect) != known
        is_linked = card.interconnect is not known.interconnect
        return {"accelerator": card.id, **(memory if is_own else {}), **(link if is_linked else {})}
    # A memory that was read from the name is read from it again.
    is_given = card.memory_grade is Grade.MEASURED
    facts = card.memory_gib if is_given else None, card.vendor.value, card.name
    params = {"accelerator.name": card.name, "accelerator.vendor": card.vendor.value}
    if is_given:
        params |= memory
    if catalogue.accelerator_from_facts(*facts).interconnect is not card.interconnect:
        params |= link
    return params


def _encode_plain(name: str, value: object) -> dict[str, str]:
    flag = FLAGS[name]
    if value is None or (value == flag.default and flag.link is not LinkRule.ALWAYS):
        return {}
    return {name: "auto" if flag.auto is not None and value == flag.auto else _text(value)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def _value(name: str, text: str) -> object:
    """The JSON value of a parameter's text; the request reader checks it."""
    flag = FLAGS.get(name)
    kind = Kind.TEXT if name.startswith("env.") else Kind.ANY if flag is None else flag.kind
    if kind in _TEXTS:
        return text
    if kind is Kind.NAMES:
        return text.split(",")
    if kind is Kind.INTEGERS:
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


class Pin(Struct, frozen=True, kw_only=True):
    """One pinned scenario, and the repairs of its link."""

    scenario: Scenario | None
    repairs: tuple[Repair, ...] = ()


def encode_pins(pins: Sequence[Pin]) -> dict[str, str]:
    """The pins as parameters, without those that a config.json makes too long for a link.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> pin = Pin(scenario=scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}))
        >>> encode_pins([pin])["pin.1"][:42]
        'v=1&model=Qwen/Qwen3-8B&accelerator=H100-8'
    """
    texts = [pin_text(pin.scenario) for pin in pins[:MAX_PINS] if pin.scenario is not None]
    return dict(zip(PIN_NAMES, (text for text in texts if len(text) <= MAX_PIN_CHARACTERS), strict=False))


def pin_text(scenario: Scenario) -> str:
    """One scenario as the text of a pin."""
    return query_string(encode(scenario))


def fits_in_link(scenario: Scenario) -> bool:
    """Whether a scenario can be pinned: its config.json must not be too long."""
    text = pin_text(scenario)
    if len(text) > MAX_PIN_CHARACTERS or text.count("&") >= MAX_PIN_FIELDS:
        return False
    return decode(_parsed(text)).scenario == scenario


def decode_pins(params: Mapping[str, str], beside: Container[str] = ()) -> tuple[Pin, ...]:
    """The pins of a link, each repaired as a link is. Never raises.

    A pin that cannot be read at all has no scenario.
    """
    return tuple(_pin(name, params[name], beside) for name in PIN_NAMES if params.get(name, "").strip())


def _parsed(text: str) -> dict[str, str]:
    """The parameters of a pin, including those without a value. Raises ValueError for too many."""
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PIN_FIELDS))


def _pin(name: str, text: str, beside: Container[str]) -> Pin:
    limit = f"{MAX_PIN_CHARACTERS} characters"
    if len(text) <= MAX_PIN_CHARACTERS:
        limit = f"{MAX_PIN_FIELDS} fields"
        try:
            params = _parsed(text)
        except ValueError:
            params = {}
        if is_scenario(params):
            decoded = decode(params, beside)
            return Pin(scenario=decoded.scenario, repairs=decoded.repairs)
    error = ScenarioError("unreadable-pin", field=name, value=text, limit=limit)
    return Pin(scenario=None, repairs=(Repair.of(name, text, error),))
