"""Faults are dealt like cards: each as often as the others, and none is forgotten."""

from __future__ import annotations

import random

from tests.campaign import Decks

NAMES = ("a", "b", "c")


def test_each_fault_is_dealt_as_often_as_the_others() -> None:
    decks, choose = Decks(), random.Random(1)
    dealt = [decks.deal(choose, "kind", NAMES, "at ") for _ in range(6)]
    assert sorted(dealt[:3]) == sorted(dealt[3:]) == list(NAMES)
    assert decks.dealt == {"at a", "at b", "at c"}


def test_a_fault_that_could_not_happen_is_dealt_again() -> None:
    decks, choose = Decks(), random.Random(1)
    name = decks.deal(choose, "kind", NAMES, "at ")
    decks.take_back("kind", name, "at ")
    assert decks.dealt == set()
    assert decks.deal(choose, "kind", NAMES, "at ") == name
