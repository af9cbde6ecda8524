"""Page parameters in the link: how the text of each is read, and its value where it is absent.

    ?vendors=amd,intel&sort=requests&vary=block_size&step=3

One table for all pages. A value is read by its row; what cannot be read is left out and named on the page, like a
field of the scenario. A parameter that says what its absence says stays out of the link.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct

from kvcore import catalogue
from kvcore.advice.vary import Varied
from kvcore.base.errors import KvPlannerError, invalid, not_among
from kvcore.base.words import Language
from kvcore.catalogue.accelerators import Vendor
from kvcore.charts.catalogue_rows import Task
from kvcore.charts.goal_figures import GoalFigures
from kvcore.charts.link_figures import LinkFigures
from kvcore.charts.matrix import MEMORY_BANDS, Order
from kvcore.charts.replay_figures import ReplayFigures
from kvcore.evidence.accuracy import Check
from kvcore.texts import CHECKS, PATHS, SYLLABUS, Source
from kvcore.wire.link_names import LANGUAGE, Repair
from kvcore.workload.histogram import MAX_LENGTH, MAX_TOKENS
from kvcore.workload.traffic import LengthQuantiles, unpacked
from pages.ui.shared.parameter_readers import (
    LONGEST_TEXT,
    Reader,
    amounts,
    between,
    one_of,
    some_of,
    switch,
    whole,
    words_of,
)

LARGEST_PRICE: Final = 100_000.0
"""Largest price of one GPU and hour, in any currency."""
MAX_CARDS: Final = 12
"""Most accelerators next to each other on Compare."""
POPULAR_CARDS: Final = (
    "L40S-48GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB", "MI300X-192GB",
)  # fmt: skip
GPU_LIMITS: Final = (1, 2, 4, 8, 16)
ALL_TASKS: Final = "all"
CHECK_TABS: Final = ("log", "files", "pre-run")
"""The tabs of the Check page."""
SECTIONS: Final = ("parameters", "stories", "going-live", "catalogue", "glossary")
ARRIVALS: Final = (0.001, 100_000.0)
"""Requests per second."""
FIRST_TOKEN_SECONDS: Final = (0.0, 3600.0)
ANSWER_SPEED: Final = (0.1, 10_000.0)
"""Tokens per second of one answer."""
ALERT_KV_PERCENT: Final = (1, 99)
"""Per cent of the blocks: 100 or more are never in use."""
ALERT_WAITING: Final = (1, 1_000_000)
ALERT_FIRST_SECONDS: Final = (0.01, 2560.0)
ALERT_SECONDS: Final = (0.3, 7680.0)
"""Between the bounds of the engine's histograms: beyond the last one nothing ever fires.

Source: vllm/v1/metrics/loggers.py (0.11.0), pull request 15202.
"""
MAX_STORY_STEPS: Final = 999
"""More steps than any story has; a step beyond the last is the last."""
ACCURACY_GROUPS: Final = ("version", "card", "family")
LARGEST_SEED: Final = 999_999
"""Largest seed of a student's questions."""
_LETTERS: Final = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


class PageParameter(NamedTuple):
    """One parameter: how its text is read, and the value of its absence."""

    read: Reader
    default: Any = None
    nearest: Callable[[str], Any] | None = None
    """The replacement for a text that cannot be read; the default where there is none."""

    def instead(self, text: str) -> Any:
        """The value in place of `text`, which cannot be read."""
        return self.default if self.nearest is None else self.nearest(text)


class PageValues(Struct, frozen=True, kw_only=True):
    """The page parameters of a link: by name only those that differ from the default, and the unusable ones."""

    values: Mapping[str, Any]
    repairs: tuple[Repair, ...] = ()


def _step(name: str, text: str) -> int:
    return int(whole(1, len(_steps()))(name, text))


def _steps() -> tuple[str, ...]:
    """The steps of the whole course, which the moving pictures of lesson 0 have no number in."""
    return tuple(step for letter, lesson in SYLLABUS.items() if letter != "0" for step in lesson.steps)


def _score(name: str, text: str) -> str:
    if len(text) > len(_steps()) or _LETTERS.fullmatch(text) is None:
        raise invalid(name, text, "it must be a text that this page made")
    return text


def nearest_step(text: str) -> int:
    """The step with the nearest number; the first for what is no number.

    Example:
        >>> nearest_step("0"), nearest_step("99") == len(_steps()), nearest_step("x")
        (1, True, 1)
    """
    return min(max(_number(text), 1), len(_steps()))


def nearest_lesson(text: str) -> str:
    """The lesson whose letter is nearest in the alphabet; none for what begins with no letter.

    Example:
        >>> nearest_lesson("E"), nearest_lesson("z"), nearest_lesson("é")
        ('e', 'l', '')
    """
    letter = text[:1].lower()
    if not ("a" <= letter <= "z"):
        return ""
    return min(SYLLABUS, key=lambda known: abs(ord(known) - ord(letter)))


def nearest_path(text: str) -> str:
    """The path with the nearest number of minutes; none for what is no number.

    Example:
        >>> nearest_path("30"), nearest_path("600"), nearest_path("x")
        ('20', '90', '')
    """
    minutes = _number(text)
    return min(PATHS, key=lambda known: abs(int(known) - minutes)) if minutes else ""


def _number(text: str) -> int:
    """A whole number of a text, of a long one its first digits; 0 for anything else."""
    digits = text[:LONGEST_TEXT]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


def _lengths(_: str, text: str) -> str:
    return LengthQuantiles.decode(text).encode()


def _traffic(_: str, text: str) -> str:
    unpacked(text)
    return text


def _figures(kind: type[LinkFigures]) -> Reader:
    return lambda _, text: kind.decode(text).encode()


def card_ids() -> tuple[str, ...]:
    """The accelerators of the catalogue."""
    return tuple(card.id for card in catalogue.load_accelerators())


PARAMETERS: Final[Mapping[str, PageParameter]] = {
    # -- Explore
    "view": PageParameter(one_of(("cards", "models")), "cards"),
    "gpus": PageParameter(one_of(GPU_LIMITS), 8),
    "vendors": PageParameter(some_of([vendor.value for vendor in Vendor])),
    "memory": PageParameter(some_of(tuple(MEMORY_BANDS)), ()),
    "sort": PageParameter(one_of([order.value for order in Order]), Order.VENDOR.value),
    "failing": PageParameter(switch, False),
    "search": PageParameter(words_of, ""),
    "task": PageParameter(one_of((ALL_TASKS, *(task.value for task in Task))), ALL_TASKS),
    "prices": PageParameter(amounts(card_ids, LARGEST_PRICE), MappingProxyType({})),
    # -- Compare
    "vary": PageParameter(one_of([varied.value for varied in Varied]), Varied.TENSOR_PARALLEL.value),
    "cards": PageParameter(some_of(card_ids, MAX_CARDS), POPULAR_CARDS),
    # -- Workload
    "lengths": PageParameter(_lengths, ""),
    "traffic": PageParameter(_traffic, ""),
    "limit": PageParameter(whole(1, MAX_LENGTH)),
    "system": PageParameter(whole(0, MAX_TOKENS)),
    "user": PageParameter(whole(1, MAX_TOKENS)),
    "reply": PageParameter(whole(1, MAX_TOKENS)),
    "kept": PageParameter(whole(0, MAX_TOKENS)),
    "prefix": PageParameter(whole(0, MAX_TOKENS)),
    "arrivals": PageParameter(between(*ARRIVALS)),
    "goal": PageParameter(_figures(GoalFigures), ""),
    "replayed": PageParameter(_figures(ReplayFigures), ""),
    "first_token": PageParameter(between(*FIRST_TOKEN_SECONDS)),
    "speed": PageParameter(between(*ANSWER_SPEED)),
    # -- Check
    "check": PageParameter(one_of(CHECK_TABS), CHECK_TABS[0]),
    # -- Reference
    "section": PageParameter(one_of(SECTIONS), SECTIONS[0]),
    "find": PageParameter(words_of, ""),
    "story": PageParameter(one_of([source.value for source in Source]), Source.RULE_OF_THUMB.value),
    "story_step": PageParameter(whole(1, MAX_STORY_STEPS), 1),
    "load_requests": PageParameter(whole(1, 1 << 20)),
    "load_prompt": PageParameter(whole(1, 1 << 30)),
    "load_answer": PageParameter(whole(1, 1 << 30)),
    "load_rate": PageParameter(between(*ARRIVALS)),
    "ticked": PageParameter(some_of(lambda: tuple(CHECKS)), ()),
    "alert_kv": PageParameter(whole(*ALERT_KV_PERCENT)),
    "alert_waiting": PageParameter(whole(*ALERT_WAITING)),
    "alert_first": PageParameter(between(*ALERT_FIRST_SECONDS)),
    "alert_seconds": PageParameter(between(*ALERT_SECONDS)),
    # -- Accuracy
    "quantity": PageParameter(one_of([check.value for check in Check]), Check.KV_MEMORY.value),
    "group": PageParameter(one_of(ACCURACY_GROUPS), ACCURACY_GROUPS[0]),
    "apart": PageParameter(switch, False),
    "unseen": PageParameter(switch, False),
    # -- Learn
    "answers": PageParameter(switch, False),
    "step": PageParameter(_step, 1, nearest_step),
    "lesson": PageParameter(one_of(lambda: tuple(SYLLABUS)), "", nearest_lesson),
    "path": PageParameter(one_of(lambda: tuple(PATHS)), "", nearest_path),
    "frame": PageParameter(whole(0, 99), 0),
    "chunk": PageParameter(one_of((4, 8, 16, 32)), 16),
    "slide": PageParameter(whole(1, 99), 1),
    "present": PageParameter(switch, False),
    "reveal": PageParameter(whole(0, 1), 0),
    "seed": PageParameter(whole(0, LARGEST_SEED), 0),
    "score": PageParameter(_score, ""),
}
"""Every link carries these parameters; pages read them as `state.page_parameter(name)`."""


def decode_page(params: Mapping[str, str]) -> PageValues:
    """The page parameters of a link. Never raises: what cannot be read is left out, and named in `repairs`.

    Example:
        >>> found = decode_page({"load_requests": "50", "step": "99", "gpus": "8"})
        >>> dict(found.values), [(repair.field, repair.used) for repair in found.repairs]
        ({'load_requests': 50, 'step': 21}, [('step', '21')])
    """
    values, repairs = {}, []
    for name, parameter in PARAMETERS.items():
        text = params.get(name, "")
        if not text:
            continue
        try:
            value = parameter.read(name, text)
        except KvPlannerError as error:
            value = parameter.instead(text)
            repairs.append(Repair.of(name, text, error, text_of(value)))
        if value != parameter.default:
            values[name] = value
    return PageValues(values=values, repairs=tuple(repairs))


def decode_language(params: Mapping[str, str]) -> tuple[Language | None, tuple[Repair, ...]]:
    """The language that a link asks for, None where it asks for none or for one that the pages do not have.

    Example:
        >>> decode_language({"lang": "zh-Hans"})[0], decode_language({"lang": "fr"})[1][0].error.code
        (<Language.CHINESE: 'zh'>, 'invalid-value')
    """
    text = params.get(LANGUAGE, "")
    asked = Language.of_tag(text)
    if asked is not None or not text:
        return asked, ()
    error = not_among(LANGUAGE, text, Language)
    return None, (Repair.of(LANGUAGE, text, error),)


def encode_page(values: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that say `values`; what absence says stays out.

    Example:
        >>> encode_page({"vendors": ("amd", "intel"), "gpus": 8})
        {'vendors': 'amd,intel'}
    """
    return {
        name: text_of(values[name])
        for name, parameter in PARAMETERS.items()
        if name in values and values[name] != parameter.default
    }


def text_of(value: Any) -> str:
    """A value as its reader takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{text_of(amount)}" for key, amount in value.items())
    if isinstance(value, tuple | list):
        return ",".join(map(text_of, value))
    return "" if value is None else str(value)
