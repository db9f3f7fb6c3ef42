"""Counted bounds on time and memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

__all__ = ["PYTHON_STEP", "Limits"]

PYTHON_STEP: Final = 80
"""What an elementary step of a front end counts against ``Limits.steps``: about its time, in steps of the engine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on work and memory, in counted units: the same on every machine.

    Reaching one raises ``LimitExceeded`` with the name of the field.

    Attributes:
        source_bytes: size of a regex, schema or grammar text.
        nesting: depth of nesting of the input (parentheses, schemas, JSON values).
        grammar_nodes: nodes of the grammar that a front end makes.
        states: automaton states, call frames and configurations made on behalf of one constraint.
        regular_states: states explored to decide whether an intersection or complement is empty.
        steps: elementary steps of the engine to compile a grammar, to fill a mask or to take a token: terms derived,
            sets of bytes compared, nodes of tries walked.  In the JSON Schema front end, to compare patterns with each
            other and with names and constants, and to make the automata of ``multipleOf``.
        distance_steps: trie nodes walked in one search for the shortest completion in tokens.
        cache_bytes: memory for cached mask rows of one constraint, within the bound on engines of ``cache_limits``.
    """

    source_bytes: int = 16 << 20
    nesting: int = 2_000
    grammar_nodes: int = 500_000
    states: int = 400_000
    regular_states: int = 200_000
    steps: int = 40_000_000
    distance_steps: int = 5_000_000
    cache_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"Limits: {item.name} must be a positive integer; found {value!r}")
