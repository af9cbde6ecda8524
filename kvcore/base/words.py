"""Words of the page in one language, and numbers as a person reads them.

A text is looked up by its English template; parameters are filled in afterwards, so that nothing untrusted is ever
part of a msgid. The catalogues are `locale/<name>/LC_MESSAGES/kvplanner.po`, read as they are: there is no compiled
form to forget.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from kvcore.base.errors import MESSAGES, KvPlannerError, Notice, render
from kvcore.base.units import GIB, KIB, MIB

_PACKAGE: Final = Path(__file__).resolve().parents[1]
LOCALE_ROOT: Final = next(
    root
    for root in (_PACKAGE / "locale", _PACKAGE.parent / "locale")
    if root.parent != _PACKAGE or root.is_dir()
)
"""In the package where it is installed (tools/package.py puts them there), at the top of a checkout."""
REASON: Final = "reason"
"""The gettext context of the sentence parts that errors carry as `{reason}`."""
MINUS: Final = "\N{MINUS SIGN}"
DASH: Final = "\N{EM DASH}"
_COUNTS: Final = frozenset(("max_model_len", "max_num_batched_tokens", "measured_tokens", "kv_tokens"))
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_TAG: Final = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z0-9]{1,8}){0,3}(?:\.[A-Za-z0-9-]{1,12})?", re.ASCII)


class Language(StrEnum):
    """The languages of the page, a row each; the value is the one in the link. See docs/adding-a-language.md."""

    locale: str
    """The folder of the catalogue."""
    tag: str
    """What the document says of itself."""
    endonym: str
    """The language's own name of itself."""
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
    """Marks a text that is translated later, when it is shown."""
    return msgid


NONE_NAMED: Final = msg("(none named)")
"""What an error says in place of an architecture that a config does not name."""
UNKNOWN: Final = msg("unknown")
"""What an error says for a compute capability that the catalogue does not have."""


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
        """The name of a card, with what its bracket says of a part of a board in this language.

        Example:
            >>> words(Language.CHINESE).card("Ascend 910C (one die)")
            'Ascend 910C (单 die)'
        """
        for part in PARTS_OF_CARDS:
            name = name.replace(part, self._plain(part))
        return name

    def error(self, error: KvPlannerError | Notice) -> str:
        """What is wrong, translated by code."""
        return self._message(MESSAGES[error.code].text, error)

    def next_step(self, error: KvPlannerError | Notice) -> str:
        """What the person can do about it, translated by code."""
        return self._message(MESSAGES[error.code].next_step, error)

    def reason(self, english: str) -> str:
        """The `{reason}` of an error, which reaches us with its numbers already filled in."""
        for pattern, text in self._reasons:
            match = pattern.fullmatch(english)
            if match:
                return render(text, "", match.groupdict())
        return english

    def _param(self, name: str, value: str, msgid: str) -> str:
        """A figure of a sentence with separators; as the engine writes it where the text has a flag to copy."""
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
    """Whether a text of our own names them. A translation may where the English says graphs alone."""
    return bool(_NAMES_GRAPHS.search(msgid)) or (CUDA not in msgid and _CUDA_GRAPHS_IN_CHINESE in text)


PARTS_OF_CARDS: Final = (msg("(one die)"), msg("(one tile)"), msg(", one chip)"))
"""What the names of cards say in words."""
CUDA: Final = "CUDA"
_CUDA_GRAPHS_IN_CHINESE: Final = "CUDA 图"
_NAMES_GRAPHS: Final = re.compile(r"CUDA graphs|CUDA graph (?:mode|estimate)\b")
"""Texts of our own about recorded steps; an engine's own words speak of a single CUDA graph."""


_READING: Final = Lock()


@cache
def platform_words(language: Language, graphs: str) -> Words:
    """The texts of `language` with recorded steps called after what the platform calls them.

    Example:
        >>> [platform_words(language, "ACL")("CUDA graphs") for language in (Language.ENGLISH, Language.CHINESE)]
        ['ACL graphs', 'ACL 图']
        >>> platform_words(Language.ENGLISH, "CUDA") is words(Language.ENGLISH)
        True
    """
    return words(language) if graphs == CUDA else words(language).renamed(graphs)


def words(language: Language) -> Words:
    """The texts of `language`, read once: on a fresh server all visitors wait for the first of them."""
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
    """A template as an expression that finds its parameters again."""
    pattern, seen, position = "", set[str](), 0
    for match in _PLACEHOLDER.finditer(template):
        name = match[1]
        pattern += re.escape(template[position : match.start()])
        pattern += rf"(?P={name})" if name in seen else rf"(?P<{name}>.+?)"
        seen.add(name)
        position = match.end()
    return re.compile(pattern + re.escape(template[position:]), re.DOTALL)


def count(value: float) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(163840)
        '163,840'
    """
    return f"{value:,.0f}"


def short_number(value: float, digits: int = 3) -> str:
    """A number with so many digits that mean something, written out: never with a power of ten.

    Example:
        >>> [short_number(value) for value in (50000, 1234.5, 12.345, 0.5, 0.00001234, -3.14159, 0)]
        ['50,000', '1,234', '12.3', '0.5', '0.0000123', '−3.14', '0']
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else f"{value}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return real_minus(text.rstrip("0").rstrip(".") if decimals else text)


def real_minus(number: str) -> str:
    """A formatted number with a minus sign in place of a hyphen.

    Example:
        >>> real_minus("-52.80"), real_minus("52.80")
        ('−52.80', '52.80')
    """
    return MINUS + number[1:] if number.startswith("-") else number


def sentences(t: Words, texts: Iterable[str]) -> str:
    """Sentences after each other, with the space of the language.

    Example:
        >>> sentences(words(Language.ENGLISH), ("One.", "Two."))
        'One. Two.'
    """
    return t.language.space.join(texts)


def gib_text(size_bytes: float, *, signed: bool = False) -> str:
    """Bytes in GiB, or in MiB below a hundredth of it; a real minus sign.

    Example:
        >>> gib_text(5 * 2**30), gib_text(-1.25 * 2**30, signed=True), gib_text(2**20)
        ('5.0 GiB', '−1.2 GiB', '1.0 MiB')
    """
    if size_bytes == 0:
        return "0 GiB"
    unit, name = (MIB, "MiB") if 0 < abs(size_bytes) < GIB / 20 else (GIB, "GiB")
    number = abs(size_bytes) / unit
    figure = f"{number:,.1f}" if number >= 1 else f"{number:,.2f}"
    sign = MINUS if size_bytes < 0 else "+" if signed else ""
    return f"{sign}{figure} {name}"


def spread_text(below_bytes: float, above_bytes: float) -> str:
    """How far an interval goes on both sides of its value, in GiB; one figure where both read the same.

    Example:
        >>> spread_text(2**29, 2**29), spread_text(2**30, 2**28)
        ('± 0.50', '−1.00 +0.25')
    """
    below, above = (f"{size / GIB:.2f}" for size in (below_bytes, above_bytes))
    return f"± {above}" if below == above else f"{MINUS}{below} +{above}"


def kib_text(size_bytes: float) -> str:
    """Bytes per token in KiB.

    Example:
        >>> kib_text(32768), kib_text(70272)
        ('32 KiB', '68.6 KiB')
    """
    return f"{size_bytes / KIB:,.1f}".removesuffix(".0") + " KiB"


def concurrency_text(value: float) -> str:
    """A concurrency as the engine rounds it, to the nearest hundredth; below one, where it does not start, down.

    Source: vllm/v1/core/kv_cache_utils.py:update_kv_cache_capacity (0.32.0).

    Example:
        >>> concurrency_text(20.0), concurrency_text(3.749), concurrency_text(105.371), concurrency_text(0.998)
        ('20', '3.75', '105.37', '0.99')
    """
    if math.isinf(value):
        return "∞"
    shown = math.floor(value * 100 + 1e-9) / 100 if value < 1 else value
    return f"{shown:,.2f}".rstrip("0").rstrip(".")


def whole_requests(value: float) -> int:
    """Requests that really run at once: never one that is not reached, and at least the one that starts.

    Example:
        >>> whole_requests(3.749), whole_requests(6.998), whole_requests(7.0), whole_requests(0.998)
        (3, 6, 7, 1)
    """
    return max(1, math.floor(value + 1e-9))


def short_tokens(tokens: int) -> str:
    """A length as axes show it.

    Example:
        >>> short_tokens(512), short_tokens(8192), short_tokens(1 << 20), short_tokens(40960)
        ('512', '8K', '1M', '40K')
    """
    for size, name in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens >= size:
            return f"{tokens / size:,.1f}".removesuffix(".0") + name
    return str(tokens)


def fine_gib_text(size_bytes: float) -> str:
    """Bytes in GiB as tables write them, without what is only zeros; in MiB below a twentieth of a GiB.

    Example:
        >>> fine_gib_text(1.46875 * 2**30), fine_gib_text(2**31), fine_gib_text(20.5 * 2**20), fine_gib_text(0)
        ('1.47 GiB', '2 GiB', '20.5 MiB', '0 GiB')
    """
    unit, name = (MIB, "MiB") if 0 < abs(size_bytes) < GIB / 20 else (GIB, "GiB")
    return f"{size_bytes / unit:,.2f}".rstrip("0").rstrip(".") + f" {name}"


def exact_gib_text(size_bytes: float) -> str:
    """Bytes in GiB with up to three decimals, for figures that people check by hand.

    Example:
        >>> exact_gib_text(0.625 * 2**30), exact_gib_text(2.5 * 2**30), exact_gib_text(2**30)
        ('0.625 GiB', '2.5 GiB', '1 GiB')
    """
    return f"{size_bytes / GIB:,.3f}".rstrip("0").rstrip(".") + " GiB"


def listed(t: Words, names: Iterable[str]) -> str:
    """Names as one list.

    Example:
        >>> from kvcore.base.words import words
        >>> listed(words(Language.ENGLISH), ("a", "b")), listed(words(Language.CHINESE), ("甲", "乙"))
        ('a, b', '甲、乙')
    """
    return t.language.comma.join(names)
