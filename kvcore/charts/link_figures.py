"""Figures that a link carries where what they were worked out on is not in it: a few numbers, and the link they
belong to."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar, Final, Self

from msgspec import Struct

from kvcore.base.errors import invalid, out_of_bounds

MOST_OF_LINK: Final = 1e9
"""The largest number of a link."""
_DIGEST: Final = re.compile(r"[0-9a-f]{8}", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,10}(?:\.\d{1,12})?(?:e[+-]?\d{1,2})?|inf", re.ASCII)


class LinkFigures(Struct, frozen=True, kw_only=True):
    """Numbers of a page parameter. Of a subclass each further field is an int or a float of at least 0."""

    parameter: ClassVar[str]
    """The name of the page parameter."""
    worked_on: str
    """Eight hexadecimal digits of the rest of the link that they belong to."""

    def encode(self) -> str:
        """The numbers as text for a link: whole ones as they are, others with six digits."""
        numbers = (getattr(self, name) for name in self.__struct_fields__[1:])
        texts = (str(number) if isinstance(number, int) else f"{number:.6g}" for number in numbers)
        return "_".join((self.worked_on, *texts))

    @classmethod
    def decode(cls, text: str) -> Self:
        """The figures of a link. Raises ScenarioError."""
        worked_on, *rest = text.split("_")
        names = cls.__struct_fields__[1:]
        if not _DIGEST.fullmatch(worked_on) or len(rest) != len(names):
            raise invalid(cls.parameter, text[:80], "it is an answer that this page has written")
        values: dict[str, Any] = {}
        for name, part in zip(names, rest, strict=True):
            if not _NUMBER.fullmatch(part):
                raise invalid(cls.parameter, part[:80], "it must be a number")
            number = float(part)
            if not (math.isfinite(number) and number <= MOST_OF_LINK):
                raise out_of_bounds(cls.parameter, part, 0.0, MOST_OF_LINK)
            values[name] = int(number) if cls.__annotations__[name] == "int" else number
        return cls(worked_on=worked_on, **values)

    def as_in_link(self) -> Self:
        """The same figures, as rounded as the link."""
        return type(self).decode(self.encode())
