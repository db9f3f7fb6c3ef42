"""Strings of a grammar, byte by byte."""

from __future__ import annotations

import random
from typing import Final

from structgen.engine import Matcher, Vocabulary

BYTES: Final = Vocabulary([bytes([byte]) for byte in range(256)])


def is_member(start: Matcher, text: bytes) -> bool:
    """Whether ``text`` is in the language; the matcher is reset."""
    start.reset()
    return start.accept_bytes(text) == len(text) and start.is_accepting


def random_member(start: Matcher, rng: random.Random, longest_walk: int) -> bytes:
    """A string that starts with fewer than ``longest_walk`` random bytes and then takes the shortest way to the end."""
    start.reset()
    text = bytearray()
    for _ in range(rng.randrange(longest_walk)):
        live = start.live_bytes()
        if not live:
            break
        text.append(rng.choice(live))
        assert start.accept(text[-1])
    return bytes(text) + bytes(start.shortest_completion())
