"""Floating-point numbers as Java writes them. The texts of Java 17 were printed by one."""

from __future__ import annotations

import math
import random
import struct

import pytest

from strandline.iceberg.java_numbers import double_text, float_text
from tests.campaign import scaled, seed

NUMBERS = scaled(2_000, 200_000)

# Where Java 17 writes neither the shortest text nor the one next to it, and where the form changes.
DOUBLES_OF_17 = {
    -3.204019457423354e18: "-3.2040194574233539E18",
    6.65e21: "6.649999999999999E21",
    5e-323: "4.9E-323",
    5e-324: "4.9E-324",
    5.9080375e-316: "5.9080375E-316",
    -2.2353819133359854e18: "-2.23538191333598541E18",
    0.5017407409958174: "0.5017407409958174",
    704.372: "704.372",
    1e7: "1.0E7",
    9999999.0: "9999999.0",
    0.001: "0.001",
    0.0009: "9.0E-4",
    math.inf: "Infinity",
    -math.inf: "-Infinity",
}


@pytest.mark.parametrize("value", DOUBLES_OF_17)
def test_a_double_is_written_as_java_17_writes_it(value: float) -> None:
    assert double_text(value, 17) == DOUBLES_OF_17[value]


def test_zero_keeps_its_sign_and_what_is_no_number_has_a_name() -> None:
    assert (double_text(-0.0, 17), double_text(0.0, 21), float_text(-0.0, 21)) == ("-0.0", "0.0", "-0.0")
    assert double_text(math.nan, 17) == float_text(math.nan, 21) == "NaN"


def test_a_float_is_written_as_java_17_writes_it() -> None:
    texts = {110874861: "5.861151E-35", 1135042888: "334.76", 1402038079: "1.24900488E12"}
    assert {bits: float_text(_float(bits), 17) for bits in texts} == texts


def test_java_21_writes_the_shortest_text_with_two_digits_at_least() -> None:
    assert [double_text(v, 21) for v in (6.65e21, 5e-323, 5e-324, 2e-3, 1e23)] == [
        "6.65E21", "4.9E-323", "4.9E-324", "0.002", "1.0E23",
    ]  # fmt: skip
    assert [float_text(_float(bits), 21) for bits in (1, 0x7F7FFFFF, 1402038079)] == [
        "1.4E-45", "3.4028235E38", "1.2490049E12",
    ]  # fmt: skip


@pytest.mark.parametrize("java", [17, 21])
def test_every_text_gives_the_number_back(java: int) -> None:
    rng = random.Random(seed(3))
    for _ in range(NUMBERS):
        [value] = struct.unpack(">d", rng.randbytes(8))
        if math.isfinite(value):
            assert float(double_text(value, java)) == value
            assert java == 17 or len(double_text(value, java)) <= len(double_text(value, 17))
        small = _float(rng.getrandbits(31))
        if math.isfinite(small):
            assert _nearest_float(float_text(small, java)) == small


def _float(bits: int) -> float:
    found: float = struct.unpack(">f", struct.pack(">i", bits))[0]
    return found


def _nearest_float(text: str) -> float:
    try:
        found: float = struct.unpack(">f", struct.pack(">f", float(text)))[0]
    except OverflowError:
        return math.inf
    return found
