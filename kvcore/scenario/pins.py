"""Pinned scenarios as parameters of a link: each is a link of its own inside it.

    ?v=1&model=…&pin.1=v%3D1%26model%3D…

A pin is read like any link, so what cannot be used in one is left out and named; a pin that says nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from kvcore.errors import ScenarioError, shorten
from kvcore.scenario import Scenario, link
from kvcore.scenario.page_parameters import Repair

MAX_PINS: Final = 4
MAX_CHARACTERS: Final = 3000
"""Of one pin, before the outer link encodes it once more; proxies cut request lines at 8 KiB."""
MAX_FIELDS: Final = 80
NAMES: Final = tuple(f"pin.{number}" for number in range(1, MAX_PINS + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One pinned scenario, and what of its link could not be used."""

    scenario: Scenario | None
    repairs: tuple[Repair, ...] = ()


def encode_pins(pins: Sequence[Pin]) -> dict[str, str]:
    """The pins as parameters; one that is too long for a link, by a config.json of its own, stays out.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> pin = Pin(scenario=scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}))
        >>> encode_pins([pin])["pin.1"][:42]
        'v=1&model=Qwen/Qwen3-8B&accelerator=H100-8'
    """
    texts = [text_of(pin.scenario) for pin in pins[:MAX_PINS] if pin.scenario is not None]
    return dict(zip(NAMES, (text for text in texts if len(text) <= MAX_CHARACTERS), strict=False))


def text_of(scenario: Scenario) -> str:
    """One scenario as the text of a pin."""
    return link.query_string(link.encode(scenario))


def fits_in_link(scenario: Scenario) -> bool:
    """Whether a scenario can be pinned: not with a long config.json of its own."""
    text = text_of(scenario)
    return len(text) <= MAX_CHARACTERS and link.decode(dict(parse_qsl(text))).scenario == scenario


def decode_pins(params: Mapping[str, str]) -> tuple[Pin, ...]:
    """The pins of a link, each repaired as a link is. Never raises.

    A pin that cannot be read at all has no scenario.
    """
    return tuple(_decode(name, params[name]) for name in NAMES if params.get(name, "").strip())


def _decode(name: str, text: str) -> Pin:
    limit = f"{MAX_CHARACTERS} characters"
    if len(text) <= MAX_CHARACTERS:
        limit = f"{MAX_FIELDS} fields"
        try:
            fields = dict(parse_qsl(text, max_num_fields=MAX_FIELDS))
        except ValueError:
            fields = {}
        if link.is_scenario(fields):
            decoded = link.decode(fields)
            return Pin(scenario=decoded.scenario, repairs=decoded.repairs)
    error = ScenarioError("unreadable-pin", field=name, value=text, limit=limit)
    return Pin(scenario=None, repairs=(Repair(field=name, given=shorten(text, 60), used="", error=error),))
