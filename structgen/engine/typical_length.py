"""How long a member is that comes of choices made by the toss of a coin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from structgen.errors import LimitExceeded
from structgen.grammar.analysis import productive_rules, strongly_connected
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ByteClass,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Permutation,
    Reference,
    Repeat,
    postorder,
)
from structgen.grammar.scopes import resolve

__all__ = ["typical_length"]

_LinearForm = dict[str, float]
"""A sum: how often the length of each rule counts, and under ``_ALONE`` what is added."""
_ALONE: Final = "\0"
_DENSE: Final = 300
_MAX_SUMMANDS: Final = 2_000_000
"""Summands that are added up for rules that are too many to be solved as a matrix."""
_SMALL: Final = Limits(grammar_nodes=100_000)


def typical_length(grammar: Grammar) -> float:
    """Return the expected length, in characters, of a random derivation of a closed term; infinite if it diverges.

    In the derivation each alternative that has members is chosen with the same probability, a repetition goes on with
    probability 1/2 after what it must have, up to its bound, and an optional member of a permutation is there with
    probability 1/2.  Characters of a class count as one; an intersection counts as its first item that is no
    complement, a complement as one character, and a special token as one.

    This is a property of how the rules are written, not of the language alone.  It tells long outputs from short ones,
    and where it is infinite, recursion branches so much that a reader of coins would not come to an end.

    Raises:
        LimitExceeded: the rules have more than 100,000 nodes, or many rules refer to each other so closely that
            iteration does not find the length soon.
        GrammarError: a reference has no rule.

    Complexity: O(n + s ** 3) for n nodes and rules that refer to each other in sets of s; larger sets than 300 are
        solved by iteration, of a bounded number of steps.

    >>> from structgen.frontends.regex import regex
    >>> typical_length(regex("ab?c*|de{3}"))
    3.25
    """
    flat = resolve(grammar, _SMALL, through_shared=True)
    rules = dict(flat.rules)
    productive = productive_rules(rules)
    forms = {name: _form(term, productive) for name, term in rules.items()}
    solved: dict[str, float] = {}
    for group in strongly_connected(
        {name: [other for other in form if other != _ALONE] for name, form in forms.items()}
    ):
        solved |= _solve(group, forms, solved)
    return _value(_form(flat.body, productive), solved)


def _form(root: Grammar, productive: frozenset[str]) -> _LinearForm:
    made: dict[int, _LinearForm] = {}
    alive: dict[int, bool] = {}
    for node in postorder(root):
        parts = [made[id(child)] for child in node.children]
        lives = [alive[id(child)] for child in node.children]
        alive[id(node)] = all(lives)
        match node:
            case Literal():
                form = {_ALONE: float(len(node.data.decode("utf-8", "replace")))}
            case Reference():
                form, alive[id(node)] = {node.name: 1.0}, node.name in productive
            case Choice():
                chosen = [part for part, is_alive in zip(parts, lives, strict=True) if is_alive]
                form, alive[id(node)] = _sum((part, 1 / len(chosen)) for part in chosen), bool(chosen)
            case Repeat():
                further = 1.0 if node.max is None else 1 - 0.5 ** min(node.max - node.min, 64)
                alive[id(node)] = lives[0] or node.min == 0
                form = _sum([(parts[0], node.min + further)]) if lives[0] else {}
            case Permutation():
                form, alive[id(node)] = _arranged(node, parts, lives), True
            case Intersection():
                wanted = [
                    part for part, item in zip(parts, node.items, strict=True) if not isinstance(item, Complement)
                ]
                form = wanted[0] if wanted else {_ALONE: 1.0}
            case JsonString():
                form = _sum([(parts[0], 1.0), ({_ALONE: 2.0}, 1.0)])
            case ByteClass() | CharClass():
                form, alive[id(node)] = {_ALONE: 1.0}, bool(node.ranges)
            case Complement():
                form, alive[id(node)] = {_ALONE: 1.0}, True
            case _ if not parts:
                form = {_ALONE: 1.0}
            case _:
                form = parts[0] if len(parts) == 1 else _sum((part, 1.0) for part in parts)
        made[id(node)] = form
    return made[id(root)]


def _arranged(node: Permutation, parts: list[_LinearForm], lives: list[bool]) -> _LinearForm:
    *items, rest, separator = parts
    required, optional = items[: len(node.required)], items[len(node.required) :]
    others: float = max(node.min - len(required), 1) if lives[-2] else 0
    count: float = len(required) + len(optional) / 2 + others
    if node.max is not None and count > node.max:
        others = max(others - (count - node.max), 0)
        count = node.max
    return _sum(
        [
            *((part, 1.0) for part in required),
            *((part, 0.5) for part in optional),
            (rest, others),
            (separator, max(count - 1, 0)),
        ]
    )


def _sum(parts: Iterable[tuple[_LinearForm, float]]) -> _LinearForm:
    total: _LinearForm = {}
    for form, weight in parts:
        for name, value in form.items():
            total[name] = total.get(name, 0.0) + weight * value
    return {name: value for name, value in total.items() if value}


def _value(form: Mapping[str, float], solved: Mapping[str, float]) -> float:
    return sum(weight * (1.0 if name == _ALONE else solved[name]) for name, weight in form.items())


def _solve(group: list[str], forms: Mapping[str, _LinearForm], solved: Mapping[str, float]) -> dict[str, float]:
    """Solve rules that refer to each other; all others that they refer to are solved."""
    index = {name: place for place, name in enumerate(group)}
    known = np.array([_value({k: v for k, v in forms[name].items() if k not in index}, solved) for name in group])
    inner = {name: [(index[k], v) for k, v in forms[name].items() if k in index] for name in group}
    if not any(inner.values()):
        return dict(zip(group, known.tolist(), strict=True))
    if not np.isfinite(known).all():
        return dict.fromkeys(group, math.inf)
    if len(group) <= _DENSE:
        matrix = np.zeros((len(group), len(group)))
        for name, edges in inner.items():
            for place, weight in edges:
                matrix[index[name], place] = weight
        if np.abs(np.linalg.eigvals(matrix)).max() >= 1 - 1e-9:
            return dict.fromkeys(group, math.inf)
        return dict(zip(group, np.linalg.solve(np.eye(len(group)) - matrix, known).tolist(), strict=True))
    values = known.tolist()
    for _ in range(_MAX_SUMMANDS // sum(map(len, inner.values()))):
        change = 0.0
        for place, name in enumerate(group):
            value = float(known[place]) + sum(weight * values[other] for other, weight in inner[name])
            change = max(change, abs(value - values[place]) / (1 + value))
            values[place] = value
        if change < 1e-9:
            return dict(zip(group, values, strict=True))
        if max(values) > 1e12:
            return dict.fromkeys(group, math.inf)
    raise LimitExceeded("typical length of a grammar", limit="summands", maximum=_MAX_SUMMANDS)
