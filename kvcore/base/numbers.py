"""Numbers as people read them: the one module that writes a count, a size or a share as text.

A real minus sign, thousands separators, and no power of ten unless a function says so.
"""

from __future__ import annotations

import math
from typing import Final

from kvcore.base.units import GIB, KIB, MIB

MINUS: Final = "\N{MINUS SIGN}"
DASH: Final = "\N{EM DASH}"
"""Stands where there is no number."""


def real_minus(number: str) -> str:
    """A formatted number with a minus sign in place of a hyphen.

    Example:
        >>> real_minus("-52.80"), real_minus("52.80")
        ('−52.80', '52.80')
    """
    return MINUS + number[1:] if number.startswith("-") else number


def trimmed(value: float, decimals: int) -> str:
    """A number with at most so many decimals, without trailing zeros.

    Example:
        >>> trimmed(1.46875, 2), trimmed(1200.5, 3), trimmed(2.0, 2), trimmed(90, 0)
        ('1.47', '1,200.5', '2', '90')
    """
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def count(value: float) -> str:
    """A whole number with thousands separators.

    Example:
        >>> count(163840)
        '163,840'
    """
    return f"{value:,.0f}"


def significant(value: float) -> str:
    """A whole number in full, any other with four digits.

    Example:
        >>> significant(163840), significant(0.123456), significant(1234.5)
        ('163,840', '0.1235', '1,234')
    """
    return count(value) if float(value).is_integer() else f"{value:,.4g}"


def short_number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, written out: never with a power of ten.

    Example:
        >>> [short_number(value) for value in (50000, 1234.5, 12.345, 0.5, 0.00001234, -3.14159, 0)]
        ['50,000', '1,234', '12.3', '0.5', '0.0000123', '−3.14', '0']
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else f"{value}"
    return real_minus(trimmed(value, max(0, digits - 1 - math.floor(math.log10(abs(value))))))


def gib_text(size_bytes: float, *, signed: bool = False) -> str:
    """Bytes in GiB, or in MiB below a twentieth of a GiB; a real minus sign.

    Example:
        >>> gib_text(5 * 2**30), gib_text(-1.25 * 2**30, signed=True), gib_text(2**20)
        ('5.0 GiB', '−1.2 GiB', '1.0 MiB')
    """
    if size_bytes == 0:
        return "0 GiB"
    unit, name = _gib_or_mib(size_bytes)
    number = abs(size_bytes) / unit
    figure = f"{number:,.1f}" if number >= 1 else f"{number:,.2f}"
    sign = MINUS if size_bytes < 0 else "+" if signed else ""
    return f"{sign}{figure} {name}"


def fine_gib_text(size_bytes: float) -> str:
    """Bytes in GiB as tables write them, without trailing zeros; in MiB below a twentieth of a GiB.

    Example:
        >>> fine_gib_text(1.46875 * 2**30), fine_gib_text(2**31), fine_gib_text(20.5 * 2**20), fine_gib_text(0)
        ('1.47 GiB', '2 GiB', '20.5 MiB', '0 GiB')
    """
    unit, name = _gib_or_mib(size_bytes)
    return f"{trimmed(size_bytes / unit, 2)} {name}"


def exact_gib_text(size_bytes: float) -> str:
    """Bytes in GiB with up to three decimals, for figures that people check by hand.

    Example:
        >>> exact_gib_text(0.625 * 2**30), exact_gib_text(2.5 * 2**30), exact_gib_text(2**30)
        ('0.625 GiB', '2.5 GiB', '1 GiB')
    """
    return f"{trimmed(size_bytes / GIB, 3)} GiB"


def kib_text(size_bytes: float) -> str:
    """Bytes per token in KiB.

    Example:
        >>> kib_text(32768), kib_text(70272)
        ('32 KiB', '68.6 KiB')
    """
    return f"{trimmed(size_bytes / KIB, 1)} KiB"


def format_bytes(size_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps the number at or above one.

    Example:
        >>> format_bytes(131_072), format_bytes(-5 * 2**30), format_bytes(12)
        ('128.00 KiB', '-5.00 GiB', '12 bytes')
    """
    for unit_bytes, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit_bytes:
            return f"{size_bytes / unit_bytes:,.2f} {unit}"
    return f"{count(size_bytes)} bytes"


def spread_text(below_bytes: float, above_bytes: float) -> str:
    """How far an interval reaches on both sides of its value, in GiB; one figure where both read the same.

    Example:
        >>> spread_text(2**29, 2**29), spread_text(2**30, 2**28)
        ('± 0.50', '−1.00 +0.25')
    """
    below, above = (f"{size / GIB:.2f}" for size in (below_bytes, above_bytes))
    return f"± {above}" if below == above else f"{MINUS}{below} +{above}"


def concurrency_text(value: float) -> str:
    """A concurrency as the engine rounds it, to the nearest hundredth; below one, where it does not start, down.

    Source: vllm/v1/core/kv_cache_utils.py:update_kv_cache_capacity (0.32.0).

    Example:
        >>> concurrency_text(20.0), concurrency_text(3.749), concurrency_text(105.371), concurrency_text(0.998)
        ('20', '3.75', '105.37', '0.99')
    """
    if math.isinf(value):
        return "∞"
    return trimmed(math.floor(value * 100 + 1e-9) / 100 if value < 1 else value, 2)


def whole_requests(value: float) -> int:
    """Requests that run at the same time: the concurrency rounded down, and at least the one that starts.

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
    for size, name in ((MIB, "M"), (KIB, "K")):
        if tokens >= size:
            return trimmed(tokens / size, 1) + name
    return str(tokens)


def _gib_or_mib(size_bytes: float) -> tuple[int, str]:
    return (MIB, "MiB") if 0 < abs(size_bytes) < GIB / 20 else (GIB, "GiB")
