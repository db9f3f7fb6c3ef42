"""Recursion without the stack: generators that yield their sub-problems.

A recursive function is written as a generator; ``result = yield function(smaller)`` stands for the recursive call.
:func:`run` keeps the suspended generators in a list, so that depth costs memory only.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(problem: Generator[object, Any, T]) -> T:
    """Return what ``problem`` returns, after solving the sub-problems that it yields."""
    suspended: list[Generator[object, Any, Any]] = [problem]
    result: Any = None
    while suspended:
        try:
            asked = suspended[-1].send(result)
        except StopIteration as stop:
            suspended.pop()
            result = stop.value
        else:
            suspended.append(asked)  # type: ignore[arg-type]  # what is yielded is such a generator
            result = None
    answer: T = result
    return answer
