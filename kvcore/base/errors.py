"""Every coded error and notice; their English words are in `kvcore/base/messages.toml`.

    KvPlannerError(ValueError)      code, field, value, params; message and next step from MESSAGES
    ├── ScenarioError               a field of the request, the link or the page is unusable
    ├── ModelError                  a config.json that cannot be read exactly
    ├── EngineRefusalError          what the engine itself refuses before it looks at memory
    ├── CatalogueError              an entry of the bundled catalogue is wrong, or is not there
    │   └── TableError              a bundled table of what changes from release to release is wrong
    ├── HubError                    the Hugging Face Hub did not give what was asked for
    ├── LogError                    a start-up log that cannot be read
    ├── ManifestError               a file that people deploy, or a document in it, that cannot be read
    ├── WorkloadError               a request log that cannot be read
    └── DefectError                 this program is wrong, not the input

A `Notice` is the same thing that does not stop a plan: a warning with a code. The page translates both by code:
`MESSAGES[code]` is the msgid, `params` are filled in afterwards, so that untrusted text is never part of a msgid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from kvcore.base.prose import MESSAGES as MESSAGES  # for those who translate an error


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A coded warning next to a plan.

    Example:
        >>> Notice(code="missing-field", field="model").message
        'model is missing'
    """

    code: str
    field: str = ""
    params: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def message(self) -> str:
        """The English words."""
        return render(MESSAGES[self.code].text, self.field, self.params)

    @property
    def next_step(self) -> str:
        """The English advice."""
        return render(MESSAGES[self.code].next_step, self.field, self.params)


def notice(code: str, field: str = "", **params: object) -> Notice:
    """The notice of that code.

    Example:
        >>> notice("max-model-len-above-model", "max_model_len", asked=9, derived=8).params
        {'asked': '9', 'derived': '8'}
    """
    return Notice(code=code, field=field, params={name: str(value) for name, value in params.items()})


class KvPlannerError(ValueError):
    """An input that cannot be planned, with a code, the field it is about, and a next step.

    Example:
        >>> error = ScenarioError("missing-field", field="model")
        >>> error.code, error.field, str(error), error.next_step
        ('missing-field', 'model', 'model is missing', 'add it')
    """

    longest: ClassVar = 120
    """Characters of a parameter."""

    def __init__(self, code: str, field: str = "", value: object = None, **params: object) -> None:
        self.code = code
        self.field = shorten(field)
        self.value = value
        self.params: dict[str, str] = {key: shorten(text, self.longest) for key, text in params.items()}
        if value is not None:
            self.params.setdefault("value", shorten(value))
        super().__init__(render(MESSAGES[code].text, self.field, self.params))

    def __reduce__(self) -> tuple[Any, ...]:
        """As another process or a copy has it: by default an exception is made anew from its message alone."""
        state = dict(self.__dict__)
        if not isinstance(self.value, _PLAIN):
            state["value"] = self.params.get("value")  # whatever it was, it may not pass to another process
        return _again, (type(self), str(self)), state

    @property
    def message(self) -> str:
        """The English words."""
        return str(self)

    @property
    def next_step(self) -> str:
        """The English advice."""
        return render(MESSAGES[self.code].next_step, self.field, self.params)


def _again(kind: type[KvPlannerError], message: str) -> KvPlannerError:
    return kind.__new__(kind, message)


class ScenarioError(KvPlannerError):
    """A field of the request, the link or the page is unusable."""


class ModelError(KvPlannerError):
    """A config.json that cannot be read exactly."""


class EngineRefusalError(KvPlannerError):
    """A refusal by the engine itself, before it looks at memory; the message is in the engine's words."""


class WordedRefusalError(EngineRefusalError):
    """A refusal in whole sentences of an engine, with its figures."""

    longest = 1000


class CatalogueError(KvPlannerError):
    """An entry of the bundled catalogue is wrong, or is not there."""


class TableError(CatalogueError):
    """A bundled table of what changes from release to release is wrong; nothing in the words is a visitor's."""

    longest = 2000
    """So that all allowed values are named."""


class HubError(KvPlannerError):
    """The Hugging Face Hub did not give what was asked for."""


class LogError(KvPlannerError):
    """A start-up log that cannot be read."""


class ManifestError(KvPlannerError):
    """A file that people deploy, or a document in it, that cannot be read."""


class WorkloadError(KvPlannerError):
    """A request log that cannot be read."""


class DefectError(KvPlannerError):
    """This program is wrong, not the input: the last net caught what nobody expected."""


def invalid(field: str, value: object, reason: str) -> ScenarioError:
    """The refusal of a field's value; `reason` says what it must be.

    Example:
        >>> str(invalid("max_num_seqs", 0, "it must lie between 1 and 1048576"))
        'max_num_seqs cannot be 0: it must lie between 1 and 1048576'
    """
    return ScenarioError("invalid-value", field=field, value=value, reason=reason)


def out_of_bounds(field: str, value: object, lowest: float, highest: float) -> ScenarioError:
    """The refusal of a number that lies outside its bounds.

    Example:
        >>> str(out_of_bounds("max_num_seqs", 0, 1, 1048576))
        'max_num_seqs cannot be 0: it must lie between 1 and 1048576'
    """
    low, high = (str(bound) if isinstance(bound, int) else f"{bound:g}" for bound in (lowest, highest))
    return invalid(field, value, f"it must lie between {low} and {high}")


def not_among(field: str, value: object, options: Iterable[str]) -> ScenarioError:
    """The refusal of a value that is none of `options`.

    Example:
        >>> str(not_among("host", "mac", ("linux", "wsl")))
        'host cannot be mac: it must be one of linux, wsl'
    """
    return invalid(field, value, f"it must be one of {', '.join(options)}")


def checked_text(field: str, value: object) -> str:
    """A value that must be a text. Raises ScenarioError `invalid-value`.

    Example:
        >>> checked_text("model", "Qwen/Qwen3-8B")
        'Qwen/Qwen3-8B'
    """
    if not isinstance(value, str):
        raise invalid(field, type(value).__name__, "it must be a text")
    return value


def defect(error: Exception) -> DefectError:
    """The coded error that stands for an unexpected one. The log gets its type and place, never what a visitor sent.

    Example:
        >>> defect(ZeroDivisionError("secret")).code
        'internal-error'
    """
    import logging  # with what a start does without: most of them meet no defect
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{_short_path(frame.filename)}:{frame.lineno}" for frame in frames[-_LOGGED_FRAMES:]]
    logging.getLogger(__name__).error(
        "internal-error: %s at %s", type(error).__name__, " < ".join(reversed(places))
    )
    return DefectError("internal-error", value=type(error).__name__)


def _short_path(name: str) -> str:
    """A source file from the root of this program, or the end of its path."""
    path = Path(name)
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else "/".join(path.parts[-3:])


_LOGGED_FRAMES: Final = 6
_PLAIN: Final = (str, int, float, bool, list, dict, type(None))
"""The types of JSON values."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_PLACEHOLDER: Final = re.compile(r"\{(\w+)(?::([^{}|]*)\|([^{}|]*))?\}")
"""`{name}`, or `{name:one|many}` with the words of a language that has a plural for one and for any other number."""


def render(template: str, field: str, params: Mapping[str, str]) -> str:
    """`template` with `{field}` and `{params}` filled in, in one pass; unknown names stay as they are.

    `{name:one|many}` becomes the words for one where `name` is 1, else those for many.

    Example:
        >>> [render("{lines} {lines:line is|lines are} cut", "", {"lines": lines}) for lines in ("1", "20")]
        ['1 line is cut', '20 lines are cut']
        >>> render("{value} is none of {near}", "", {"value": "{near}", "near": "a, b"})
        '{near} is none of a, b'
    """
    values = {"field": field, **params}

    def filled(match: re.Match[str]) -> str:
        name, one, many = match.groups()
        if name not in values or one is None:
            return values.get(name, match[0])
        return one if values[name] == "1" else many

    return _PLACEHOLDER.sub(filled, template)


def shorten(value: object, limit: int = 120) -> str:
    """`value` as one printable line of at most `limit` characters, safe to show as text.

    Example:
        >>> shorten("a" * 200)[-3:], len(shorten("a" * 200))
        ('...', 120)
    """
    text = value if isinstance(value, str) else str(value)[: limit * 4]
    text = "".join(c if c.isprintable() else " " for c in text[: limit * 4])
    return text if len(text) <= limit else text[: limit - 3] + "..."
