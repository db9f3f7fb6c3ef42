"""Small changes to JSON values that often make valid ones invalid: at a bound, a type, a name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["mutated"]

Change: TypeAlias = Callable[[Any, random.Random], Any]

_OTHERS: tuple[Any, ...] = (None, True, False, 0, 1, -1, 1.5, "", "a", "2020-02-30", [], {}, [None], {"a": 1})
_NAMES = ("zz", "x-a", "a", "0", "$ref", "")


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a copy of ``value`` in which one scalar, array or object is changed (by chance to the same value)."""
    box = [copy.deepcopy(value)]
    holder, key = rng.choice(_places(box))
    holder[key] = rng.choice(_changes(holder[key], box))(holder[key], rng)
    return box[0]


def _places(box: list[Any]) -> list[tuple[Any, Any]]:
    """Every value in ``box``, as its container and its key."""
    found: list[tuple[Any, Any]] = []
    stack: list[Any] = [box]
    while stack:
        holder = stack.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], list | dict):
                stack.append(holder[key])
    return found


def _changes(value: Any, box: list[Any]) -> list[Change]:
    def replaced(_: Any, rng: random.Random) -> Any:
        return copy.deepcopy(rng.choice(_OTHERS))

    def swapped(_: Any, rng: random.Random) -> Any:
        holder, key = rng.choice(_places(box))
        return copy.deepcopy(holder[key])

    if isinstance(value, bool) or value is None:
        return [replaced, swapped, lambda old, _: not old]
    own = {str: _string, list: _array, dict: _object}.get(type(value), _number)
    return [replaced, swapped, *[own] * 5]


def _number(value: Any, rng: random.Random) -> Any:
    other: float = rng.choice((value + 1, value - 1, -value, value / 2, value * 10, value / 10, value + 0.5, 0))
    return rng.choice((other, float(other), int(other)))


def _string(value: str, rng: random.Random) -> str:
    place = rng.randrange(len(value) + 1)
    before, after = value[:place], value[place:]
    inserted = rng.choice('a0-_.:/@ xZ~"\\\n\r\u2028é😀')
    return rng.choice(
        (
            *(value + inserted, inserted + value, before + inserted + after, before + after[1:], value[:-1]),
            *(value[1:], value + value, value.upper(), value.lower(), ""),
        )
    )


def _array(value: list[Any], rng: random.Random) -> list[Any]:
    place = rng.randrange(len(value) + 1)
    before, after = value[:place], value[place:]
    return rng.choice(
        (
            *(
                before + after[1:],
                before + copy.deepcopy(after[:1]) + after,
                value[::-1],
                rng.sample(value, len(value)),
            ),
            *([], [*before, copy.deepcopy(rng.choice(_OTHERS)), *after], value + copy.deepcopy(value[:1])),
        )
    )


def _object(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name = rng.choice(list(value) or [""])
    others = {other: item for other, item in value.items() if other != name}
    renamed = rng.choice((name + "x", name[:-1], name.upper(), f"x-{name}", *value))
    added = {rng.choice(_NAMES): copy.deepcopy(rng.choice(_OTHERS))}
    return rng.choice((others, others, {**others, renamed: value.get(name)}, value | added, added | value, {}))
