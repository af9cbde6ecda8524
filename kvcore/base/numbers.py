"""Numbers as people read them: the one module that writes a count, a size or a share as text.

A real minus sign, thousands separators, and no power of ten unless a function says so.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from kvcore.base.units import GIB, KIB, MIB

MINUS: Final = "\N{MINUS SIGN}"
DASH: Final = "\N{EM DASH}"
"""Stands where there is no number."""
_UNITS: Final = {"GiB": GIB, "MiB": MIB, "KiB": KIB}


class Translate(Protocol):
    """The texts of one language, as `kvcore.base.words.Words` gives them."""

    def __call__(self, msgid: str, /, **params: str) -> str: ...


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


def significant(value: float, digits: int = 4) -> str:
    """A whole number in full, any other with so many significant digits.

    Example:
        >>> significant(163840), significant(0.123456), significant(1234.5), significant(15.26834, 6)
        ('163,840', '0.1235', '1,234', '15.2683')
    """
    return count(value) if float(value).is_integer() else f"{value:,.{digits}g}"


def plain(value: float) -> str:
    """A number as flags and settings write it: six significant digits, no separators, no trailing zeros.

    Example:
        >>> plain(0.9), plain(80.0), plain(2048)
        ('0.9', '80', '2048')
    """
    return f"{value:g}"


def two_decimals(value: float) -> str:
    """A number with two decimals, as the engine prints sizes in GiB; a real minus sign.

    Example:
        >>> two_decimals(15.2683), two_decimals(-52.8)
        ('15.27', '−52.80')
    """
    return real_minus(f"{value:.2f}")


def log_number(value: float) -> str:
    """A number of a start log.

    Example:
        >>> log_number(8192.0), log_number(7.5)
        ('8192', '7.50')
    """
    if value.is_integer():
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"


def answer_text(value: float) -> str:
    """A guess or an answer as people write it.

    Example:
        >>> answer_text(163840), answer_text(2.125), answer_text(0.14)
        ('163,840', '2.125', '0.14')
    """
    if value >= 1000 or value == round(value):
        return count(value)
    return f"{value:,.4g}" if value >= 1 else f"{value:,.3g}"


def factor_text(ratio: float) -> str:
    """How many times one number is another.

    Example:
        >>> factor_text(2.0), factor_text(12.34), factor_text(250.4)
        ('2', '12.3', '250')
    """
    return trimmed(ratio, 1 if ratio < 100 else 0)


def short_count(total: int) -> str:
    """A number of parameters as names of models have it.

    Example:
        >>> short_count(32_762_123_264), short_count(751_632_384), short_count(1_026_900_000_000)
        ('32.8B', '752M', '1.03T')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if total >= size:
            return f"{total / size:.3g}{unit}"
    return count(total)


def money(amount: float) -> str:
    """An amount in any currency, with enough digits to tell amounts apart.

    Example:
        >>> money(1234.5), money(12.5), money(0.0421), money(0.000019)
        ('1,234.50', '12.50', '0.042', '0.000019')
    """
    return f"{amount:,.2f}" if amount >= 1 else short_number(amount, 2)


def error_percent(share: float, t: Translate, *, signed: bool = False) -> str:
    """An error in per cent as the language writes it, with a decimal below ten.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> english, chinese = words(Language.ENGLISH), words(Language.CHINESE)
        >>> error_percent(0.0042, english), error_percent(-0.0213, english, signed=True)
        ('0.4\xa0%', '−2.1\xa0%')
        >>> error_percent(0.496, chinese), error_percent(float("inf"), english)
        ('50%', '∞')
    """
    if math.isinf(share):
        return "∞"
    size = 100 * abs(share)
    text = f"{size:.1f}" if size < 9.95 else f"{size:.0f}"
    sign = "" if not signed or float(text) == 0 else MINUS if share < 0 else "+"
    return _percent(f"{sign}{text}", t)


def whole_percent(share: float, t: Translate) -> str:
    """A share in whole per cent as the language writes it."""
    return _percent(f"{100 * share:.0f}", t)


def share_text(share: float, t: Translate) -> str:
    """A share in per cent: never rounded to none or to all where it is neither.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> [share_text(share, words(Language.ENGLISH)) for share in (0.0, 0.0004, 0.0123, 0.5, 0.9996)]
        ['0\xa0%', '< 0.1\xa0%', '1.2\xa0%', '50\xa0%', '> 99.9\xa0%']
    """
    if share not in (0, 1) and (share < 0.001 or share > 0.999):
        return _percent("< 0.1" if share < 0.001 else "> 99.9", t)
    if share in (0, 1) or 0.1 <= share <= 0.9:
        return whole_percent(share, t)
    return _percent(f"{100 * share:.1f}", t)


def _percent(number: str, t: Translate) -> str:
    return t("{number}\N{NO-BREAK SPACE}%", number=number)


def preemption_text(rate: float | None) -> str:
    """Preemptions a request.

    Example:
        >>> [preemption_text(rate) for rate in (None, 0.0, 0.004, 0.05, 1.31)]
        ['—', '0', '< 0.01', '0.05', '1.3']
    """
    if rate is None:
        return DASH
    if rate < 0.01:
        return "< 0.01" if rate else "0"
    return f"{rate:.2f}" if rate < 1 else f"{rate:.1f}"


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


def signed_gib(difference_gib: float) -> str:
    """A difference in GiB with its sign, without the unit.

    Example:
        >>> signed_gib(-0.306), signed_gib(0.5), signed_gib(0.001)
        ('−0.31', '+0.50', '0.00')
    """
    text = f"{abs(difference_gib):.2f}"
    if text == "0.00":
        return text
    return ("+" if difference_gib > 0 else MINUS) + text


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
    unit = next((unit for unit, unit_bytes in _UNITS.items() if abs(size_bytes) >= unit_bytes), None)
    return f"{count(size_bytes)} bytes" if unit is None else in_unit(size_bytes, unit)


def size_text(size_bytes: float) -> str:
    """A size in the largest binary unit with a real minus sign; nothing is 0 GiB.

    Example:
        >>> size_text(131_072), size_text(-5 * 2**30), size_text(0)
        ('128.00 KiB', '−5.00 GiB', '0 GiB')
    """
    return real_minus(format_bytes(size_bytes)) if size_bytes else "0 GiB"


def in_gigabytes(size_bytes: float) -> str:
    """Bytes in GB of 10⁹ bytes, with four digits and without the unit.

    Example:
        >>> in_gigabytes(65_524_246_528), in_gigabytes(-2e9)
        ('65.52', '−2')
    """
    return real_minus(f"{size_bytes / 1e9:,.4g}")


def in_unit(size_bytes: float, unit: str) -> str:
    """Bytes in GiB, MiB or KiB with two decimals.

    Example:
        >>> in_unit(3 * 2**29, "GiB"), in_unit(3 * 2**29, "MiB")
        ('1.50 GiB', '1,536.00 MiB')
    """
    return f"{size_bytes / _UNITS[unit]:,.2f} {unit}"


def single_bytes(size_bytes: float) -> str:
    """Bytes as they are, for figures that people check by hand.

    Example:
        >>> single_bytes(2048), single_bytes(0.5625)
        ('2,048 B', '0.5625 B')
    """
    return f"{f'{size_bytes:,.4g}' if size_bytes < KIB else count(size_bytes)} B"


def in_billions(value: float) -> str:
    """A number of parameters in billions, with four digits.

    Example:
        >>> in_billions(32_762_123_264)
        '32.76 × 10⁹'
    """
    return f"{value / 1e9:.4g} × 10⁹"


def latex(number: str) -> str:
    """A formatted number and its unit in LaTeX, where a comma alone would be followed by a space.

    Example:
        >>> latex("1,536.00 MiB"), latex("163,840"), latex("32.76 × 10⁹")
        ('1{,}536.00\\\\,\\\\text{MiB}', '163{,}840', '32.76\\\\times 10^{9}')
    """
    digits, _, unit = number.replace(",", "{,}").partition(" ")
    if unit == "× 10⁹":
        return rf"{digits}\times 10^{{9}}"
    return rf"{digits}\,\text{{{unit}}}" if unit else digits


def latex_in_powers(value: float) -> str:
    """A number of parameters in LaTeX, in millions or billions.

    Example:
        >>> latex_in_powers(32_762_123_264)
        '32.76\\\\times 10^{9}'
    """
    scale, power = (10**9, 9) if value >= 10**9 else (10**6, 6)
    return rf"{value / scale:,.2f}\times 10^{{{power}}}"


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


def rough_requests(value: float) -> str:
    """Requests at once as an overview shows them: whole ones from ten on, whose error is larger than a fraction.

    Example:
        >>> rough_requests(3.749), rough_requests(62.68), rough_requests(1412.3), rough_requests(0.998)
        ('3.75', '62', '1,412', '0.99')
    """
    return concurrency_text(value) if math.isinf(value) or value < 10 else count(math.floor(value + 1e-9))


NEARLY_ONE: Final = 0.95
"""Rounding to whole blocks takes no more of one request."""


def whole_requests(value: float) -> int:
    """Requests that run at the same time: the concurrency rounded down; one where only rounding is between.

    An engine that starts although no request of full length fits runs none.

    Example:
        >>> [whole_requests(value) for value in (3.749, 6.998, 7.0, 0.998, 0.71)]
        [3, 6, 7, 1, 0]
    """
    return math.floor(value + 1e-9) or int(value > NEARLY_ONE)


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
