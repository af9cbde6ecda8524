"""The texts of the pages in one language.

A text is looked up by its English template; parameters are filled in afterwards, so that nothing untrusted is ever
part of a msgid. The catalogues are `locale/<name>/LC_MESSAGES/kvplanner.po`, read as they are: there is no compiled
form to forget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from kvcore.base.errors import MESSAGES, KvPlannerError, Notice, render
from kvcore.base.numbers import count

_PACKAGE: Final = Path(__file__).resolve().parents[1]
LOCALE_ROOT: Final = next(
    root
    for root in (_PACKAGE / "locale", _PACKAGE.parent / "locale")
    if root.parent != _PACKAGE or root.is_dir()
)
"""In the package once it is installed (tools/package.py puts them there), at the top of a checkout."""
REASON: Final = "reason"
"""The gettext context of the sentence parts that errors carry as `{reason}`."""
_COUNTS: Final = frozenset(("max_model_len", "max_num_batched_tokens", "measured_tokens", "kv_tokens"))
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_TAG: Final = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z0-9]{1,8}){0,3}(?:\.[A-Za-z0-9-]{1,12})?", re.ASCII)


class Language(StrEnum):
    """The languages of the pages, a row each; the value is the one in a link. See docs/adding-a-language.md."""

    locale: str
    """The folder of the catalogue."""
    tag: str
    """The `lang` attribute of documents."""
    endonym: str
    """The language's name for itself."""
    space: str
    """Between sentences."""
    comma: str
    """Between the names of a list."""

    ENGLISH = "en", "en", "en", "English", " ", ", "
    CHINESE = "zh", "zh_CN", "zh-CN", "中文", "", "、"

    def __new__(cls, value: str, locale: str, tag: str, endonym: str, space: str, comma: str) -> Language:
        row = str.__new__(cls, value)
        row._value_ = value
        row.locale, row.tag, row.endonym, row.space, row.comma = locale, tag, endonym, space, comma
        return row

    @classmethod
    def of_tag(cls, tag: str) -> Language | None:
        """The language of a tag as browsers, systems and people write it; None for one that the pages do not have.

        Example:
            >>> [Language.of_tag(tag) for tag in ("zh_CN.UTF-8", "zh-Hans", "en-US", "fr")]
            [<Language.CHINESE: 'zh'>, <Language.CHINESE: 'zh'>, <Language.ENGLISH: 'en'>, None]
        """
        if _TAG.fullmatch(tag) is None:
            return None
        return next((one for one in cls if one.value == re.split("[-_]", tag.lower())[0]), None)

    @classmethod
    def of_browser(cls, tag: str | None) -> Language:
        """The language for a browser's tag; English where the pages do not have it.

        Example:
            >>> Language.of_browser("zh-CN"), Language.of_browser("de"), Language.of_browser(None)
            (<Language.CHINESE: 'zh'>, <Language.ENGLISH: 'en'>, <Language.ENGLISH: 'en'>)
        """
        return cls.of_tag(tag or "") or cls.ENGLISH


def msg(msgid: str) -> str:
    """Marks a text that is translated when it is shown."""
    return msgid


NONE_NAMED: Final = msg("(none named)")
"""Stands for the architecture in an error where a config names none."""
UNKNOWN: Final = msg("unknown")
"""Stands for a compute capability that the catalogue does not have."""


class Words:
    """The texts of one language. `words(language)` gives them; calling it translates.

    Example:
        >>> words(Language.ENGLISH)("{count} more", count="3")
        '3 more'
    """

    def __init__(self, language: Language, texts: dict[tuple[str, str], str]) -> None:
        self.language = language
        self._texts = texts
        reasons = ((msgid, text) for (context, msgid), text in texts.items() if context == REASON)
        # The particular template goes before the general one.
        ordered = sorted(reasons, key=lambda reason: len(_PLACEHOLDER.sub("", reason[0])), reverse=True)
        self._reasons = tuple((_pattern(msgid), text) for msgid, text in ordered)

    def renamed(self, graphs: str) -> Words:
        """The same texts with another name for the platform's graphs."""
        named = {key: text for key, text in self._texts.items() if _names_graphs(key[1], text)}
        texts = {key: text.replace(CUDA, graphs) for key, text in named.items()}
        # A figure of a sentence is said in the platform's words already.
        said = {(context, msgid.replace(CUDA, graphs)): texts[context, msgid] for context, msgid in named}
        return Words(self.language, {**self._texts, **texts, **said})

    def __call__(self, msgid: str, /, **params: str) -> str:
        """The text of `msgid` in this language, with `{params}` filled in."""
        return render(self._texts.get(("", msgid), msgid), "", params) if params else self._plain(msgid)

    def card(self, name: str) -> str:
        """The name of a card with its bracket in this language.

        Example:
            >>> words(Language.CHINESE).card("Ascend 910C (one die)")
            'Ascend 910C (单 die)'
        """
        for part in PARTS_OF_CARDS:
            name = name.replace(part, self._plain(part))
        return name

    def error(self, error: KvPlannerError | Notice) -> str:
        """The message of an error, translated by its code."""
        return self._message(MESSAGES[error.code].text, error)

    def next_step(self, error: KvPlannerError | Notice) -> str:
        """The next step after an error, translated by its code."""
        return self._message(MESSAGES[error.code].next_step, error)

    def reason(self, english: str) -> str:
        """The `{reason}` of an error, which reaches us with its numbers already filled in."""
        for pattern, text in self._reasons:
            match = pattern.fullmatch(english)
            if match:
                return render(text, "", match.groupdict())
        return english

    def _param(self, name: str, value: str, msgid: str) -> str:
        """A parameter as text: numbers with separators, but as the engine writes them in a flag to copy."""
        if (name, value) in (("capability", UNKNOWN), ("architecture", NONE_NAMED)):
            return self._plain(value)
        if name in ("part", "near"):  # what is near is a name, or words of ours where nothing is
            return self._plain(value)
        return count(int(value)) if name in _COUNTS and value.isdecimal() and "--" not in msgid else value

    def _plain(self, msgid: str) -> str:
        return self._texts.get(("", msgid), msgid)

    def _message(self, msgid: str, error: KvPlannerError | Notice) -> str:
        params = {name: self._param(name, value, msgid) for name, value in error.params.items()}
        if REASON in params:
            params[REASON] = self.reason(params[REASON])
        text = render(self._plain(msgid), error.field, params)
        if self.language is not Language.ENGLISH:
            return text
        first = msgid.split(" ", 1)[0]
        return text if first.strip("abcdefghijklmnopqrstuvwxyz',") else text[:1].upper() + text[1:]


def _names_graphs(msgid: str, text: str) -> bool:
    """Whether a text of the planner's own is about graphs. A translation may name CUDA where English says graphs."""
    return bool(_NAMES_GRAPHS.search(msgid)) or (CUDA not in msgid and _CUDA_GRAPHS_IN_CHINESE in text)


PARTS_OF_CARDS: Final = (msg("(one die)"), msg("(one tile)"), msg(", one chip)"))
"""The words in the brackets of card names."""
CUDA: Final = "CUDA"
_CUDA_GRAPHS_IN_CHINESE: Final = "CUDA 图"
_NAMES_GRAPHS: Final = re.compile(r"CUDA graphs|CUDA graph (?:mode|estimate)\b")
"""Finds the planner's own texts about recorded steps; an engine's own words speak of a single CUDA graph."""


_READING: Final = Lock()


@cache
def platform_words(language: Language, graphs: str) -> Words:
    """The texts of `language` with recorded steps named as the platform names them.

    Example:
        >>> [platform_words(language, "ACL")("CUDA graphs") for language in (Language.ENGLISH, Language.CHINESE)]
        ['ACL graphs', 'ACL 图']
        >>> platform_words(Language.ENGLISH, "CUDA") is words(Language.ENGLISH)
        True
    """
    return words(language) if graphs == CUDA else words(language).renamed(graphs)


def words(language: Language) -> Words:
    """The texts of `language`, read once: on a fresh server all visitors wait for the first read."""
    with _READING:
        return _read(language)


@cache
def _read(language: Language) -> Words:
    from babel.messages.pofile import read_po

    path = LOCALE_ROOT / language.locale / "LC_MESSAGES" / "kvplanner.po"
    if not path.exists():
        return Words(language, {})
    with path.open("rb") as source:
        catalogue = read_po(source)
    return Words(
        language,
        {
            (message.context or "", str(message.id)): str(message.string)
            for message in catalogue
            if message.id and message.string
        },
    )


def _pattern(template: str) -> re.Pattern[str]:
    """A regex that finds the parameters of a filled-in template again."""
    pattern, seen, position = "", set[str](), 0
    for match in _PLACEHOLDER.finditer(template):
        name = match[1]
        pattern += re.escape(template[position : match.start()])
        pattern += rf"(?P={name})" if name in seen else rf"(?P<{name}>.+?)"
        seen.add(name)
        position = match.end()
    return re.compile(pattern + re.escape(template[position:]), re.DOTALL)


def sentences(t: Words, texts: Iterable[str]) -> str:
    """Sentences one after the other, with the language's space between them.

    Example:
        >>> sentences(words(Language.ENGLISH), ("One.", "Two."))
        'One. Two.'
    """
    return t.language.space.join(texts)


def listed(t: Words, names: Iterable[str]) -> str:
    """Names as one list.

    Example:
        >>> listed(words(Language.ENGLISH), ("a", "b")), listed(words(Language.CHINESE), ("甲", "乙"))
        ('a, b', '甲、乙')
    """
    return t.language.comma.join(names)
