"""`--additional-config` split for controls: one control for each key that a release reads, and the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from kvcore.base.untrusted import parse_json_object, unquoted
from kvcore.engine.facts import ADDITIONAL as FIELD
from kvcore.engine.facts import SWITCH
from kvcore.engines.registry import engine_of
from kvcore.flags import FLAGS, Flag, Widget
from kvcore.scenario import Scenario, value_of
from kvcore.wire.fields import MAX_OBJECT_CHARACTERS, read_object

SPELLING: Final = FLAGS[FIELD].spelling
SCHEDULER: Final = f"{FIELD}.ascend_scheduler_config.{SWITCH}"
_ROWS: Final = tuple(
    flag for name, flag in FLAGS.items() if name.startswith(f"{FIELD}.") and flag.widget is Widget.BY_KIND
)
"""Keys with a control of their own, in the order of the registry."""


def is_taken_apart(scenario: Scenario) -> bool:
    """Whether there is anything to show: the engine reads the flag, or the scenario sets it.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B"}
        >>> [is_taken_apart(scenario_from_request({**asked, "engine": name})) for name in ("vllm", "vllm-ascend")]
        [False, True]
    """
    engine = engine_of(scenario)
    reads = any(engine.additional_keys(host) for _, host in engine.releases())
    return reads or scenario.additional_config is not None


def rows_of(scenario: Scenario) -> tuple[Flag, ...]:
    """The keys with a control that the release of `scenario` reads. Raises a KvPlannerError for an unknown release.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend", "engine_version": "0.9.1"}
        >>> [flag.key for flag in rows_of(scenario_from_request(asked))][:2]
        ['dynamic_eplb', 'lmhead_tp_size']
    """
    engine = engine_of(scenario)
    keys = engine.additional_keys(engine.planned_release(scenario).version)
    left_out = () if SCHEDULER.partition(".")[2] in keys else (SCHEDULER,)
    return tuple(flag for flag in _ROWS if flag.name.split(".")[1] in keys and flag.name not in left_out)


def readers_of(scenario: Scenario, key: str) -> tuple[str, ...]:
    """The releases of the engine that read a key, newest first.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"})
        >>> readers_of(scenario, "torchair_graph_config"), readers_of(scenario, "expert_parallel")
        (('0.11.0', '0.9.1'), ())
    """
    engine = engine_of(scenario)
    return tuple(str(own) for own, host in reversed(engine.releases()) if key in engine.additional_keys(host))


def with_key(scenario: Scenario, field: str, value: object) -> Scenario:
    """`scenario` with one key changed, by its name in a request; the default value removes the key.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> start = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"})
        >>> with_key(start, "additional_config.eplb_config.num_redundant_experts", 16).additional_config
        '{"eplb_config":{"num_redundant_experts":16}}'
    """
    said = None if value == FLAGS[field].default else value
    others = _without(_said(scenario), (field,))
    return _with_values(scenario, others if said is None else _merged(others, _nested(field, said)))


def rest_of(scenario: Scenario, shown: Iterable[str]) -> str:
    """The part of the flag that none of the controls `shown` covers, as readable JSON; "" for nothing."""
    rest = _without(_said(scenario), shown)
    return json.dumps(rest, ensure_ascii=False) if rest else ""


def with_rest(scenario: Scenario, shown: Iterable[str], text: str) -> Scenario:
    """`scenario` with `text` in place of the part of the flag that none of the controls `shown` covers.

    It may be the whole flag, as in a command. Raises ScenarioError for text that is not JSON, and for unknown keys.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> start = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"})
        >>> with_rest(start, (), "--additional-config '{\\"refresh\\": true}'").additional_config
        '{"refresh":true}'
    """
    plain = unquoted(text.strip().removeprefix(SPELLING).lstrip(" =").strip())
    given = parse_json_object(plain, max_bytes=4 * MAX_OBJECT_CHARACTERS, field=FIELD) if plain else {}
    kept: dict[str, Any] = {}
    for name in shown:
        value = value_of(scenario, name)
        if value is not None:
            kept = _merged(kept, _nested(name, value))
    return _with_values(scenario, _merged(kept, given))


def _with_values(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    return replace(scenario, additional_config=read_object(values, FIELD))


def _said(scenario: Scenario) -> dict[str, Any]:
    return json.loads(scenario.additional_config) if scenario.additional_config else {}


def _nested(field: str, value: object) -> dict[str, Any]:
    """`value` under the keys of `field` that come after the flag."""
    for key in reversed(field.split(".")[1:]):
        value = {key: value}
    return value if isinstance(value, dict) else {}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects merged; the second counts where they differ."""
    both = {
        key: _merged(first[key], value)
        if isinstance(value, dict) and isinstance(first.get(key), dict)
        else value
        for key, value in second.items()
    }
    return {**first, **both}


def _without(values: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """`values` without the keys `fields`, and without objects that are empty then."""
    left = dict(values)
    for field in fields:
        _, key, *inner = field.split(".")
        if not inner:
            left.pop(key, None)
        elif isinstance(left.get(key), dict) and inner[0] in left[key]:
            left[key] = {name: value for name, value in left[key].items() if name != inner[0]}
            if not left[key]:
                del left[key]
    return left
