"""The sandbox in which chat templates run: a template comes with a model's files, so its work is counted."""

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["BoundedEnvironment"]

_MOST_ROUNDS: Final = 1_000_000
_MOST_LENGTH: Final = 1 << 24
_WIDTH: Final = re.compile(r"[0-9]{6}|\*|:[^}]*\{")
"""In a text with places to fill: a width of 100,000 or more, or one that is computed."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox for one rendering, in which loops are counted and the lengths of values are bounded.

    Beyond a bound, ``SecurityError`` of Jinja is raised.
    """

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.rounds = 0
        self.filters = {name: _bounded(function) for name, function in self.filters.items()}
        self.filters |= {"__counted": self._counted, "__sized": _sized}
        self.globals["raise_exception"] = _refuse

    def _counted(self, values: Iterable[object]) -> Iterable[object]:
        for value in values:
            self.rounds += 1
            if self.rounds > _MOST_ROUNDS:
                raise SecurityError(f"its loops take more than {_MOST_ROUNDS} rounds")
            yield value

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "__counted", [], [], None, None, lineno=loop.lineno)
        for joined in list(tree.find_all(nodes.Concat)):
            joined.nodes = [nodes.Filter(each, "__sized", [], [], None, None) for each in joined.nodes]
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result may be long."""
        if operator == "*":
            for one, many in ((left, right), (right, left)):
                if isinstance(many, int) and hasattr(one, "__len__") and len(one) * many > _MOST_LENGTH:
                    raise SecurityError(f"a product is longer than {_MOST_LENGTH}")
        elif operator == "**" and (not isinstance(right, int) or abs(right) > 100 or abs(left) > _MOST_LENGTH):
            raise SecurityError("a power is too large")
        elif operator == "%" and isinstance(left, str) and _WIDTH.search(left):
            raise SecurityError("a width is too large")
        return _sized(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
        """Call a function or method of a template."""
        text = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if isinstance(text, str) and function.__name__ in {"format", "format_map"} and _WIDTH.search(text):
            raise SecurityError("a width is too large")
        _check_numbers((*args, *options.values()))
        return _sized(super().call(context, function, *args, **options))


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps what Jinja notes on the function
    def run(*args: Any, **options: Any) -> Any:
        _check_numbers((*args[1:], *options.values()))
        return _sized(function(*args, **options))

    return run


def _check_numbers(values: Iterable[object]) -> None:
    if any(isinstance(value, int) and abs(value) > _MOST_LENGTH for value in values):
        raise SecurityError(f"a number in a call is larger than {_MOST_LENGTH}")


def _sized(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)) and len(value) > _MOST_LENGTH:
        raise SecurityError(f"a value is longer than {_MOST_LENGTH}")
    return value
