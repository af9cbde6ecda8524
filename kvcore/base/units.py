"""Bytes, GiB and the integer arithmetic of blocks. GiB is 2**30 bytes everywhere, as in the engine's log."""

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
GB: Final = 10**9


def gib(size_bytes: float) -> float:
    """`size_bytes` in GiB.

    Example:
        >>> gib(3 * 2**30)
        3.0
    """
    return size_bytes / GIB


def rounded(figure: float) -> float:
    """A figure as JSON writes it: six decimals, a KiB of a GiB; more would be the noise of a division.

    Example:
        >>> rounded(30.58527660369873)
        30.585277
    """
    return round(figure, 6)


def rounded_gib(size_bytes: float) -> float:
    """`size_bytes` in GiB, as JSON writes it."""
    return round(size_bytes / GIB, 6)


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below `numerator / denominator`.

    Example:
        >>> ceil_div(33, 16)
        3
    """
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`.

    Example:
        >>> round_up(151_937, 64)
        152000
    """
    return ceil_div(value, multiple) * multiple
