"""Places in a text where a setting may stand or may be put in: proposals only, each to be read again before it counts.

The text keeps its comments and its layout: an edit replaces a value where it stands, or puts one more argument beside
those that are there, in their own style.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

MAX_PLACES: Final = 48
"""Most occurrences of a value, or of an argument, that are proposed."""
NEAR: Final = 160
"""Characters between the name of a setting and its value."""

_NUMBER: Final = re.compile(r"(?:(?<=:-)|(?<![\w.$-]))\d[\d_]{0,14}(?:\.\d{1,8})?[kKmMgG]?(?![\w.]*[\w])")
_SIZE: Final = re.compile(r"(?<![\w.])(\d{1,9}(?:\.\d{1,6})?)\s?([KMGTkmgt]i?[bB]?)(?![\w.])")


class Edit(Struct, frozen=True, order=True):
    """A piece of a text, and what is to stand in its place."""

    begin: int
    end: int
    text: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text with all edits made.

    Example:
        >>> edited("--a 1 --b 2", [Edit(4, 5, "7"), Edit(10, 11, "8")])
        '--a 7 --b 8'
    """
    for one in sorted(edits, reverse=True):
        text = text[: one.begin] + one.text + text[one.end :]
    return text


def spellings(word: str, name: str) -> re.Pattern[str]:
    """The names under which a setting may stand: the option as typed, and keys in every style.

    Example:
        >>> found = spellings("--max-model-len", "max_model_len")
        >>> [bool(found.search(text)) for text in ("maxModelLen: 8", "max_model_len=8", "--max-model-lens 8")]
        [True, True, False]
    """
    bare = word.lstrip("-").replace("-", "_")
    forms = {word, word.replace("_", "-"), word.replace("-", "_").replace("__", "--", 1)} if word else set()
    for one in {bare, name}:
        first, *rest = one.split("_")
        forms |= {one, one.replace("_", "-"), first + "".join(part.capitalize() for part in rest)}
    longest = sorted(filter(None, forms), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])-{{0,2}}(?:{'|'.join(map(re.escape, longest))})(?![\w-])")


def line_start(text: str, line: int) -> int:
    """Where a line begins; lines count from 1."""
    at = 0
    for _ in range(line - 1):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at


def value_places(
    text: str, old: str, names: re.Pattern[str] | None, first: int, *, floor: int = 0
) -> list[Edit]:
    """Where a value stands, with nothing put in its place yet: behind its name and near `first` before others."""
    number = _as_number(old)
    if number is not None:
        found = [one.span() for one in _NUMBER.finditer(text) if _as_number(one[0]) == number]
    else:
        word = re.compile(rf"(?:(?<=:-)|(?<![\w./-])){re.escape(old)}(?![\w/-])")
        found = [one.span() for one in word.finditer(text)]
    named = [one.end() for one in names.finditer(text)] if names is not None else []
    line = text.rfind("\n", 0, first) + 1

    def rank(span: tuple[int, int]) -> tuple[bool, bool, int]:
        before = max((end for end in named if end <= span[0]), default=-NEAR)
        return span[0] - before >= NEAR, span[0] < line, abs(span[0] - first)

    return [Edit(begin, end, "") for begin, end in sorted(found, key=rank) if begin >= floor][:MAX_PLACES]


def _as_number(text: str) -> float | None:
    """A number as people write it, with its factor; None for others."""
    text = text.strip()
    factor = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}.get(text[-1:], 0)
    try:
        return float(text[:-1] if factor else text) * (factor or 1)
    except ValueError:
        return None


def size_places(text: str, gib: float, first: int) -> list[tuple[Edit, str]]:
    """Where a size in GiB stands on a line about memory, each with its unit; those behind `first` before others."""
    powers = {"k": -2, "m": -1, "g": 0, "t": 1}
    found = []
    for one in _SIZE.finditer(text):
        line = text[text.rfind("\n", 0, one.start()) + 1 : one.end()].lower()
        binary = float(one[1]) * 1024 ** powers[one[2][0].lower()]
        decimal = binary * (1000 / 1024) ** (powers[one[2][0].lower()] + 3)
        is_it = abs(binary - gib) < 1e-3 or abs(decimal - gib) < 1e-3
        if is_it and re.search(r"mem|shm|size|limit", line):
            found.append((Edit(*one.span(), ""), one[2]))
    found.sort(key=lambda place: (place[0].begin < first, abs(place[0].begin - first)))
    return found[:MAX_PLACES]


_RUN: Final = re.compile(r"\b(?:docker|podman|nerdctl)\s{1,8}(?:container\s{1,8})?run\b")
_SERVICE_IMAGE: Final = re.compile(r"^([ \t]+)image[ \t]*:", re.MULTILINE)


def container_insertions(text: str, gib: int, first: int) -> Iterator[Edit]:
    """A size of /dev/shm in GiB for a container that states none: beside `docker run`, or the image of a service.

    Example:
        >>> text = "docker run --gpus all image"
        >>> edited(text, [next(container_insertions(text, 2, 0))])
        'docker run --shm-size 2g --gpus all image'
    """
    runs = sorted(_RUN.finditer(text), key=lambda one: abs(one.start() - first))
    yield from (Edit(one.end(), one.end(), f" --shm-size {gib}g") for one in runs[:MAX_PLACES])
    images = sorted(_SERVICE_IMAGE.finditer(text), key=lambda one: abs(one.start() - first))
    for one in images[:MAX_PLACES]:
        yield Edit(one.start(), one.start(), f"{one[1]}shm_size: {gib}gb\n")


def count_places(text: str, count: int, first: int) -> Iterator[tuple[Edit, ...]]:
    """Where a number of cards stands: all of one key near each other first (requests and limits), then each alone."""
    pattern = re.compile(
        r"(?:(?<![\w./-])([\w./-]*(?:gpu|GPU|npu|davinci|[Aa]scend|accelerator|gaudi)[\w./-]*|count)"
        rf"[\"']?\s{{0,4}}[:=\s]\s{{0,4}}[\"']?(?:[\w-]{{1,40}}[:=])?)({count})(?![\w.])"
    )
    found = [(one[1], Edit(one.start(2), one.end(2), "")) for one in pattern.finditer(text)]
    found.sort(key=lambda place: (place[1].begin < first, abs(place[1].begin - first)))
    for name, edit in found[:MAX_PLACES]:
        near = [one for other, one in found if other == name and abs(one.begin - edit.begin) < 400]
        if len(near) > 1:
            yield tuple(near)
        yield (edit,)


def insertions(text: str, anchor: re.Pattern[str], field: str, value: str, first: int) -> Iterator[Edit]:
    """One more argument before each place where another one stands, in its style; those near `first` before others.

    `value` is "True" or "False" for a switch.
    """
    found = sorted(anchor.finditer(text), key=lambda one: (one.start() < first, abs(one.start() - first)))
    for one in islice(found, MAX_PLACES):
        yield from _beside(text, one.start(), one.end(), field, value)


def _beside(text: str, begin: int, end: int, field: str, value: str) -> Iterator[Edit]:
    start = text.rfind("\n", 0, begin) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    word, before, after = text[begin:end], text[start:begin], text[end:stop]
    quote = before[-1:] if before[-1:] in ("'", '"') else ""
    lead = before[:-1] if quote else before
    if word.startswith("-"):
        option = _option(field, value)
        joined = "=".join(option)
        if re.fullmatch(r"\s*-\s+", lead):  # an item of a YAML list
            yield Edit(start, start, f"{lead}{quote}{joined}{quote}\n")
        if quote and not lead.strip():
            yield Edit(start, start, f"{lead}{quote}{joined}{quote},\n")
        if quote:
            yield Edit(begin - 1, begin - 1, f"{quote}{joined}{quote}, ")
            return
        if lead.rstrip().endswith(("[", ",")):
            yield Edit(begin, begin, f"{joined}, ")
        if not lead.strip():
            yield Edit(start, start, f"{lead}{' '.join(option)}{_continued(text, start, after)}\n")
        yield Edit(begin, begin, f"{' '.join(option)} ")
        return
    yield from _keyed(word, lead, quote, after, (start, begin), (field, value))


def _continued(text: str, start: int, after: str) -> str:
    """The backslash of a command that goes on in the next line, where lines end so."""
    previous = text[text.rfind("\n", 0, max(0, start - 1)) + 1 : max(0, start - 1)]
    return " \\" if previous.rstrip().endswith("\\") or after.rstrip().endswith("\\") else ""


def _keyed(
    word: str, lead: str, quote: str, after: str, places: tuple[int, int], setting: tuple[str, str]
) -> Iterator[Edit]:
    """One more key of a mapping, or one more argument of a call."""
    start, begin = places
    field, value = setting
    behind = after.removeprefix(quote).lstrip()
    if behind[:1] == ":":
        said = value.lower() if value in ("True", "False") else value
        key = f"{quote}{_styled(field, word)}{quote}: {said}"
        if not lead.strip():
            comma = "," if quote and behind.rstrip().endswith(",") else ""
            yield Edit(start, start, f"{lead}{key}{comma}\n")
        yield Edit(begin - len(quote), begin - len(quote), f"{key}, ")
    elif behind[:1] == "=" and not quote:
        said = value if _as_number(value) is not None or value in ("True", "False") else f'"{value}"'
        if not lead.strip():
            yield Edit(start, start, f"{lead}{field}={said},\n")
        yield Edit(begin, begin, f"{field}={said}, ")


def behind_model(text: str, model: str, field: str, value: str, first: int) -> Iterator[Edit]:
    """One more argument behind the model of a command that has none."""
    option = _option(field, value)
    places = [one.span() for one in re.finditer(re.escape(model), text)]
    for _, end in sorted(places, key=lambda one: (one[0] < first, abs(one[0] - first)))[:MAX_PLACES]:
        start = text.rfind("\n", 0, end) + 1
        quote = text[end : end + 1] if text[end : end + 1] in ("'", '"') else ""
        item = re.match(r"\s*-\s+", text[start:end])
        if item is not None:
            stop = text.find("\n", end)
            stop = len(text) if stop < 0 else stop
            yield Edit(stop, stop, f"\n{item[0]}{quote}{'='.join(option)}{quote}")
        if quote:
            yield Edit(end + 1, end + 1, f", {quote}{'='.join(option)}{quote}")
        yield Edit(end, end, f" {' '.join(option)}")


def _option(field: str, value: str) -> tuple[str, ...]:
    name = field.replace("_", "-")
    if value == "True":
        return (f"--{name}",)
    return (f"--no-{name}",) if value == "False" else (f"--{name}", value)


def _styled(field: str, like: str) -> str:
    """A field in the style of another key: `max-model-len`, `maxModelLen`, `max_model_len`."""
    if "-" in like.strip("-"):
        return field.replace("_", "-")
    first, *rest = field.split("_")
    is_camel = "_" not in like and re.search(r"[a-z][A-Z]", like) is not None
    return first + "".join(part.capitalize() for part in rest) if is_camel else field
