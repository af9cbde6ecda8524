"""Prose as data: messages by their codes; terms, parameters, corrections and lessons by their names.

Each file is a table of entries that share one class, read strictly when the first of them is looked up. A `Text` is
shown to people and therefore translated (`tools/messages.py` collects them); every other value is a name.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Generic, NewType, TypeVar

from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from kvcore.toml_files import file_text, parsed

Text = NewType("Text", str)
"""English that is shown, and looked up in the catalogues of the other languages."""


class TextsError(ValueError):
    """A file of texts is wrong; the message names the file, the entry, the key, and what it may be."""


class Source(StrEnum):
    """The documents that this planner grew from; `SOURCES` names them."""

    ASCEND_TUNING = "ascend-tuning"
    RULE_OF_THUMB = "rule-of-thumb"
    PARAMETERS = "vllm-parameters"
    POST_MORTEM = "post-mortem"


class Trial(StrEnum):
    """Which values of a parameter the reference tries."""

    LENGTHS = "lengths"
    SHARES = "shares"
    SIZES = "sizes"
    PIPELINES = "pipelines"
    PRECISIONS = "precisions"
    KV_DTYPES = "kv-dtypes"
    DTYPES = "dtypes"
    SEATS = "seats"
    BATCHES = "batches"
    BLOCKS = "blocks"
    SWITCH = "switch"
    SPECULATION = "speculation"
    OFFLOADS = "offloads"
    NPU_TOTALS = "npu-totals"
    NPU_MODELS = "npu-models"


class StoryPage(StrEnum):
    """The page that a step of a story opens its start on."""

    PLAN = "plan"
    CHECK = "check"
    WORKLOAD = "workload"
    GOING_LIVE = "going-live"


class Message(Struct, frozen=True, kw_only=True):
    """A coded error or notice; `{params}` are filled in after translation."""

    text: Text
    """What is wrong, lower case."""
    next_step: Text
    """What the person can do."""


class Term(Struct, frozen=True, kw_only=True):
    """One word of the pages, explained in a sentence."""

    name: Text
    meaning: Text


class Document(Struct, frozen=True, kw_only=True):
    """A source document: what it is about, its own title, author and licence where known, what is taken from it."""

    name: Text
    title: str | None = None
    author: str | None = None
    license: str | None = None
    taken: Text


class Parameter(Struct, frozen=True, kw_only=True):
    """A parameter that the source documents explain. `field` and `trial` are None where no plan depends on it."""

    flag: str
    sources: tuple[Source, ...]
    meaning: Text
    memory: Text
    mistake: Text
    advice: Text
    field: str | None = None
    trial: Trial | None = None


class Correction(Struct, frozen=True, kw_only=True):
    """A claim of a source document, and what is true; `truth` has parameters that `explain.reference.facts` gives."""

    name: str
    source: Source
    claim: Text
    truth: Text


class Sentence(Struct, frozen=True, kw_only=True):
    """What the derivation says somewhere; its parameters are figures of the plan."""

    text: Text


class LessonPlan(Struct, frozen=True, kw_only=True):
    """A lesson of the Learn page: what it is about, and its steps by their names."""

    title: Text
    about: Text
    steps: tuple[str, ...]


class Path(Struct, frozen=True, kw_only=True):
    """A way through the steps for the time that there is."""

    title: Text
    steps: tuple[str, ...]


class Question(Struct, frozen=True, kw_only=True):
    """A question of a step; its formulas and its text name facts of a plan (kvcore/explain/derivation/facts.py)."""

    step: str
    text: Text
    unit: str
    answer: str
    slips: tuple[str, ...] = ()


class Letter(Struct, frozen=True, kw_only=True):
    """A quantity's letter in LaTeX, and what it stands for."""

    latex: str
    meaning: Text


class Check(Struct, frozen=True, kw_only=True):
    """An item of the checklist before going live; `{params}` are filled in after translation."""

    title: Text
    detail: Text
    open: Text = Text("")
    """Said in place of `detail` where the plan leaves it open."""
    fails: Text = Text("")
    """Said in place of `detail` where it fails."""


class StoryStep(Struct, frozen=True, kw_only=True):
    """One step of a source document as a story: what it says, what is wrong there, the start to look at."""

    story: Source
    title: Text
    text: Text
    wrong: Text
    scenario: str
    """By a name of `kvcore.explain.documents`."""
    page: StoryPage = StoryPage.PLAN
    figures: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()


class StoryFigure(Struct, frozen=True, kw_only=True):
    """A figure of a story by its label, and as the document writes it."""

    label: Text
    written: str = ""


Entry = TypeVar("Entry")


class Texts(Mapping[str, Entry], Generic[Entry]):
    """The entries of one file by their keys, in its order; `key` is the field of the class that repeats the key.

    Example:
        >>> MESSAGES["missing-field"].next_step
        'add it'
    """

    def __init__(self, file: str, kind: type[Entry], *, key: str | None = None) -> None:
        self.file, self.kind, self.key = file, kind, key

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def shown(self) -> Iterator[Text]:
        """Every text of the file, in its order."""
        hints = typing.get_type_hints(self.kind)
        texts = (getattr(entry, name) for entry in self.values() for name in hints if hints[name] is Text)
        return filter(None, texts)

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        text = file_text("kvcore.texts", self.file)
        return self.read(text)

    def read(self, text: str) -> dict[str, Entry]:
        """The entries of a file's `text`. Raises TextsError by file, entry and key."""
        try:
            tables = parsed(text)
        except ValueError as error:
            raise TextsError(f"{self.file}: {error}") from None
        return {key: self._entry(key, table) for key, table in tables.items()}

    def _entry(self, key: str, table: Any) -> Entry:
        place = f"{self.file}: [{key}]"
        if not isinstance(table, dict):
            raise TextsError(f"{place} must be a table")
        given = table if self.key is None else {self.key: key, **table}
        known: dict[str, FieldInfo] = {field.name: field for field in fields(self.kind)}  # type: ignore[arg-type]
        if unknown := sorted(table.keys() - (known.keys() - {self.key})):
            raise TextsError(f"{place} {unknown[0]}: no such key; known are {', '.join(known)}")
        for name, field in known.items():
            if name not in given and field.required:
                raise TextsError(f"{place} {name}: missing")
        hints = typing.get_type_hints(self.kind)
        return self.kind(
            **{name: _value(f"{place} {name}", hints[name], value) for name, value in given.items()}
        )


class Labels(Texts[dict[str, Text]]):
    """Groups of short texts, each under the name that it is asked for by.

    Example:
        >>> LABELS["origins"]["fitted"]
        'Fitted to your log: {parts}'
    """

    @property
    def shown(self) -> Iterator[Text]:
        """Every text of the file, in its order."""
        return (text for group in self.values() for text in group.values())

    def _entry(self, key: str, table: Any) -> dict[str, Text]:
        place = f"{self.file}: [{key}]"
        if not isinstance(table, dict):
            raise TextsError(f"{place} must be a table")
        return {name: _value(f"{place} {name}", Text, value) for name, value in table.items()}


def _value(place: str, hint: Any, value: Any) -> Any:
    """`value` as `hint` wants it: a text, a name, one of the values of an enum, or several of them."""
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list) or not value:
            raise TextsError(f"{place}: must be a list")
        return tuple(_value(place, typing.get_args(hint)[0], one) for one in value)
    if not isinstance(value, str) or not value.strip():
        raise TextsError(f"{place}: must be a text")
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if value not in list(hint):
            raise TextsError(f"{place}: {value!r} is none of {', '.join(hint)}")
        return hint(value)
    return value


MESSAGES: Final = Texts("messages.toml", Message)
"""The words of every coded error and notice, by its code."""
GLOSSARY: Final = Texts("glossary.toml", Term)
"""In alphabetical order of the English words."""
PARAMETERS: Final = Texts("parameters.toml", Parameter, key="flag")
"""In the order in which they decide a deployment; former ones last."""
CORRECTIONS: Final = Texts("corrections.toml", Correction, key="name")
"""What the source documents get wrong."""
SOURCES: Final = Texts("sources.toml", Document)
"""By `Source`."""
LESSONS: Final = Texts("lessons.toml", Sentence)
"""The derivation's own, in the order of its steps."""
SYLLABUS: Final = Texts("syllabus.toml", LessonPlan)
"""The lessons by their letters, in the order of teaching."""
PATHS: Final = Texts("paths.toml", Path)
"""By their minutes."""
QUESTIONS: Final = Texts("questions.toml", Question)
"""Of the steps of the Learn page, in the order in which a step asks them."""
LETTERS: Final = Texts("letters.toml", Letter)
"""By the name of a quantity, or "<what it is an input of>.<name>"."""
STORIES: Final = Texts("stories.toml", StoryStep)
"""The source documents step by step, by "document/step"."""
STORY_FIGURES: Final = Texts("story_figures.toml", StoryFigure)
"""By "document/figure"."""
CHECKS: Final = Texts("checklist.toml", Check)
"""In the order in which they are done."""
LABELS: Final = Labels("labels.toml", dict)
"""What names are called and what the pages say, in groups."""
ALL: Final[tuple[Texts[Any], ...]] = (
    MESSAGES, GLOSSARY, PARAMETERS, CORRECTIONS, SOURCES, LESSONS, SYLLABUS, PATHS, QUESTIONS, LETTERS, STORIES,
    STORY_FIGURES, CHECKS, LABELS,
)  # fmt: skip
