"""Writes floating-point numbers as Java does, digit for digit: `Double.toString` and `Float.toString`.

Java 19 and later write the fewest digits that identify the number. Earlier versions sometimes write a digit more, or
another last digit, so this module follows their algorithm (`jdk.internal.math.FloatingDecimal`) step by step.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

SHORTEST_SINCE = 19

_POWERS = 27  # of 5 that fit into a long
_BITS_OF_5 = (0, 3, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28, 31, 33, 35, 38, 40, 42, 45, 47, 49, 52, 54, 56, 59, 61)
# Insignificant decimal digits, by the power of two of the last significant bit.
_INSIGNIFICANT = (
    0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10,
    11, 11, 11, 12, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15, 15, 16, 16, 16, 17, 17, 17, 18, 18, 18, 19,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Binary:
    """`fraction` × 2^(exponent − 52), with the highest of its 53 bits set."""

    fraction: int
    exponent: int
    significant: int  # bits that the number had before it was widened


def double_text(value: float, java: int) -> str:
    """The text of a double in this major version of Java; also `NaN`, `Infinity` and `-Infinity`."""
    if (special := _special_text(value)) is not None:
        return special
    if java >= SHORTEST_SINCE:
        return _signed(value, *_two_digits(abs(value), repr(abs(value)), lambda text: float(text) == abs(value)))
    [bits] = struct.unpack(">q", struct.pack(">d", abs(value)))
    return _signed(value, *_digits(_normal(bits & (1 << 52) - 1, bits >> 52, 52, 1023)))


def float_text(value: float, java: int) -> str:
    """The text of a float in this major version of Java. `value` must be one exactly."""
    if (special := _special_text(value)) is not None:
        return special
    [bits] = struct.unpack(">i", struct.pack(">f", abs(value)))
    if java >= SHORTEST_SINCE:
        return _signed(value, *_shortest_float(abs(value), bits))
    return _signed(value, *_digits(_normal(bits & (1 << 23) - 1, bits >> 23, 23, 127)))


def _special_text(value: float) -> str | None:
    """The text of NaN, an infinity or zero. None for other numbers."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    return None


def _shortest_float(size: float, bits: int) -> tuple[str, int]:
    below, above = (_middle(size, bits + step) for step in (-1, 1))
    is_even = bits % 2 == 0

    def same(text: str) -> bool:
        number = Fraction(text)
        return below < number < above or (is_even and number in (below, above))

    for places in range(9):
        # below a power of two, the candidate next to the number may not fit while the next one does
        contexts = (Context(prec=places + 1, rounding=r) for r in (ROUND_FLOOR, ROUND_CEILING))
        candidates = {f"{context.create_decimal_from_float(size):e}" for context in contexts}
        if fitting := sorted(filter(same, candidates), key=lambda text: abs(Fraction(text) - Fraction(size))):
            return _two_digits(size, fitting[0], same)
    raise ValueError(f"{size} is not a float")


def _middle(size: float, neighbour: int) -> Fraction:
    """The midpoint between a float and the neighbour with these bits. The neighbour above the largest float counts as
    2^128."""
    if neighbour == 0x7F800000:
        return (Fraction(size) + (1 << 128)) / 2
    return (Fraction(size) + Fraction(struct.unpack(">f", struct.pack(">i", neighbour))[0])) / 2


def _two_digits(size: float, text: str, same: Callable[[str], bool]) -> tuple[str, int]:
    """The digits of a text, and how many are before the decimal point. Where one digit would do, Java takes the two
    digits closest to the number."""
    _, digits, exponent = Decimal(text).normalize().as_tuple()
    if len(digits) == 1 and same(closer := f"{size:.1e}"):
        _, digits, exponent = Decimal(closer).normalize().as_tuple()
    return "".join(map(str, digits)), len(digits) + int(exponent)


def _signed(value: float, digits: str, point: int) -> str:
    """The number as Java writes it, from its digits and how many of them are before the decimal point."""
    if 0 < point < 8:
        text = f"{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    elif -3 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"
    return f"-{text}" if value < 0 else text


def _normal(fraction: int, exponent: int, bits: int, bias: int) -> _Binary:
    if exponent:
        return _Binary((fraction | 1 << bits) << (52 - bits), exponent - bias, bits + 1)
    shift = bits + 1 - fraction.bit_length()
    return _Binary(fraction << shift << (52 - bits), 1 - shift - bias, fraction.bit_length())


def _digits(number: _Binary) -> tuple[str, int]:
    """The digits that Java before 19 writes, and how many are before the decimal point."""
    zeros = (number.fraction & -number.fraction).bit_length() - 1
    bits = 53 - zeros
    tiny = max(0, bits - number.exponent - 1)
    if tiny == 0 and number.exponent <= 62:
        return _of_integer(number)
    return _of_quotient(number, number.fraction >> zeros, bits, tiny)


def _of_integer(number: _Binary) -> tuple[str, int]:
    exponent = number.exponent
    beyond = exponent - number.significant - 1
    dropped = _INSIGNIFICANT[beyond] if 1 < beyond < len(_INSIGNIFICANT) else 0
    value = number.fraction << (exponent - 52) if exponent >= 52 else number.fraction >> (52 - exponent)
    if dropped:
        value, rest = divmod(value, 10**dropped)
        value += rest >= 10**dropped >> 1
    text = str(value)
    return text.rstrip("0"), len(text) + dropped


def _of_quotient(number: _Binary, fraction: int, bits: int, tiny: int) -> tuple[str, int]:
    """Divides two integers digit by digit, until the remainder is less than half a unit in the last place."""
    tens = _estimate(number)
    b5, s5 = max(0, -tens), max(0, tens)
    b2, s2 = b5 + tiny + number.exponent, s5 + tiny
    m2 = b2 - number.significant
    b2 -= bits - 1
    common = min(b2, s2)
    b2, s2, m2 = b2 - common, s2 - common, m2 - common
    m2 -= bits == 1  # below a power of two, the next smaller number is only half as far away
    if m2 < 0:
        b2, s2, m2 = b2 - m2, s2 - m2, 0
    b_bits = bits + b2 + _bits_of(b5)
    s_bits = s2 + 1 + _bits_of(s5 + 1)
    width = 32 if max(b_bits, s_bits) < 32 else 64 if max(b_bits, s_bits) < 64 else None
    return _divided(fraction * 5**b5 << b2, 5**s5 << s2, 5**b5 << m2, tens, width)


def _bits_of(power: int) -> int:
    return _BITS_OF_5[power] if power < _POWERS else power * 3


def _estimate(number: _Binary) -> int:
    """An estimate of the decimal exponent. It may be one too high."""
    mantissa = number.fraction / (1 << 52)
    return math.floor((mantissa - 1.5) * 0.289529654 + 0.176091259 + number.exponent * 0.301029995663981)


def _divided(b: int, s: int, m: int, tens: int, width: int | None) -> tuple[str, int]:
    """The digits of b / s, and how many are before the decimal point. `width` is the size in bits of the integers that
    Java computes in, which overflow; None: they are unlimited."""
    ten_s = s * 10
    digits: list[int] = []
    first = True
    low = high = False
    while first or not (low or high):
        digit, rest = divmod(b, s)
        b, m = 10 * rest, _wrapped(m * 10, width)
        if width is None:
            low, high = b < m, b + m >= ten_s
        elif m > 0:
            low, high = b < m, _wrapped(b + m, width) > ten_s
        else:
            low = high = True  # it has overflowed, so it is larger than the remainder
        if first and digit == 0 and not high:
            tens -= 1
        else:
            digits.append(digit)
        if first and not -3 <= tens < 8:
            low = high = False  # Java writes at least one digit after the point
        first = False
    beyond_half = 2 * b - ten_s if width is None else _wrapped(_wrapped(2 * b, width) - ten_s, width)
    if high and (not low or beyond_half > 0 or (beyond_half == 0 and digits[-1] % 2)):
        tens += _round_up(digits)
    return "".join(map(str, digits)), tens + 1


def _wrapped(value: int, width: int | None) -> int:
    if width is None:
        return value
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def _round_up(digits: list[int]) -> int:
    """Adds one to the last digit; returns by how much the exponent grows."""
    at = len(digits) - 1
    while at and digits[at] == 9:
        digits[at] = 0
        at -= 1
    if digits[at] == 9:
        digits[0] = 1
        return 1
    digits[at] += 1
    return 0
