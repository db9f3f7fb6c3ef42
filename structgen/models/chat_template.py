"""The sandbox in which chat templates run: a template comes with a model's files, so its work is counted."""

from __future__ import annotations

import json
import re
import threading
from functools import cache, lru_cache, wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jinja2.parser import Parser

__all__ = ["literals_of", "render_template", "variables_of"]

_MAX_STEPS: Final = 100_000
_MAX_LENGTH: Final = 1 << 22
_MAX_SOURCE: Final = 1 << 18
_MAX_NUMBER: Final = 1 << 17
_MAX_BITS: Final = 1 << 14
_STEPS_OF_CALL: Final = 3
_LENGTH_OF_STEP: Final = 4096
_LENGTH_OF_ITEM: Final = 128
_COMPUTED_WIDTH: Final = re.compile(r"%[^a-zA-Z%]*\*|:[^}]*\{")
"""In a text with places to fill: a width that is an argument."""
_NUMBER: Final = re.compile(r"[0-9]+")
_MULTIPLYING: Final = frozenset({"expandtabs", "indent", "join", "replace"})
"""Methods and filters whose result may be as long as the product of two things they take."""
_SHALLOW: Final = frozenset({"count", "d", "default", "first", "last", "length"})
"""Filters that do not look into what a container holds."""
_LEFT_OUT: Final = frozenset({"pprint", "striptags", "urlize", "wordwrap", "xmlattr"})
"""Filters for HTML and for people, whose time may be quadratic."""
_COMPARING: Final = frozenset(
    {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lower"}
    | {"lt", "ne", "upper"}
)


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """Render a template.

    Raises:
        SecurityError of Jinja: a bound is met.
        Exception: whatever the template raises.
    """
    template = _template(source)
    _environment().steps.taken = 0
    return template.render(**variables)


@lru_cache(maxsize=16)
def _template(source: str) -> Template:
    return _environment().from_string(source)


def literals_of(source: str) -> str:
    """Return the texts that a template writes as they are, and its string constants; empty if it is malformed."""
    try:
        tree = _environment().parse(source)
    except (TemplateError, RecursionError):
        return ""
    constants = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    return "\0".join([*(node.data for node in tree.find_all(nodes.TemplateData)), *constants])


def variables_of(source: str) -> frozenset[str]:
    """Return the names that a template takes from its variables; none if it is malformed.

    >>> sorted(variables_of("{% for m in messages %}{{ m }}{% endfor %}{% if thinks is defined %}{% endif %}"))
    ['messages', 'thinks']
    """
    environment = _environment()
    try:
        found = meta.find_undeclared_variables(environment.parse(source))
    except (TemplateError, RecursionError):
        return frozenset()
    return frozenset(found - environment.globals.keys())


class _Steps(threading.local):
    """The steps of the rendering that goes on in a thread."""

    taken = 0


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which the steps of a rendering and the lengths of values are counted and bounded.

    What an operator, a comparison, a filter, a call or the output takes has at most ``_MAX_LENGTH`` characters, nested
    values counted as often as they would be written, and none of these makes more than a small multiple of it.  A round
    of a loop is a step, and so is a call, and some length that it takes.
    """

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._sized)
        self.steps = _Steps()
        self.filters["tojson"] = self._to_json  # that of Jinja is for HTML
        functions: dict[str, Any] = dict(self.filters)
        self.filters = {name: self._bounded(name, functions[name]) for name in functions.keys() - _LEFT_OUT}
        self.filters |= {"__counted": self._counted, "__joined": self._joined, "__sized": self._sized}
        tests: dict[str, Any] = dict(self.tests)
        self.tests |= {name: self._bounded(name, tests[name]) for name in _COMPARING}
        self.globals["raise_exception"] = _refuse
        del self.globals["lipsum"]

    def _count(self, steps: int) -> None:
        self.steps.taken += steps
        if self.steps.taken > _MAX_STEPS:
            raise SecurityError(f"it takes more than {_MAX_STEPS} steps")

    def _counted(self, values: Iterable[object]) -> Iterable[object]:
        for value in values:
            self._count(1)
            yield value

    def _joined(self, values: list[object]) -> str:
        return self.concat(str(self._sized(value)) for value in values)

    def _sized(self, value: Any) -> Any:
        """Return a value whose length is within its bound."""
        length, waiting = 0, [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                length += len(each)
            elif isinstance(each, int):
                length += 0 if each.bit_length() <= _MAX_BITS else _MAX_LENGTH + 1
            elif isinstance(each, (list, tuple, dict, Namespace)):
                items = getattr(each, "_Namespace__attrs", each)
                length += _LENGTH_OF_ITEM * len(items)
                if length <= _MAX_LENGTH:
                    waiting.extend([*items.keys(), *items.values()] if isinstance(items, dict) else items)
            if length > _MAX_LENGTH:
                raise SecurityError(f"a value is longer than {_MAX_LENGTH}")
        self._count(length // _LENGTH_OF_STEP)
        return value

    def _check_call(self, name: str, first: Any, others: Iterable[Any]) -> None:
        """Check what a filter or method takes; ``first`` is the value before the bar or the dot."""
        self._count(1)
        if name in _SHALLOW:
            return
        self._sized(first)
        lengths = [0]
        for value in others:
            self._sized(value)
            if isinstance(value, int) and abs(value) > _MAX_NUMBER:
                raise SecurityError(f"a number in a call is larger than {_MAX_NUMBER}")
            lengths.append(value if isinstance(value, int) else len(value) if hasattr(value, "__len__") else 0)
        if name in _MULTIPLYING and hasattr(first, "__len__") and len(first) * max(lengths) > _MAX_LENGTH:
            raise SecurityError(f"the result of {name} may be longer than {_MAX_LENGTH}")
        if name in {"format", "format_map"}:
            _check_widths(first)
        elif name == "translate":
            raise SecurityError("the result of translate has no bound")

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        at = 1 if hasattr(function, "jinja_pass_arg") else 0  # an environment or context comes first

        @wraps(function)  # keeps what Jinja notes on the function
        def run(*args: Any, **options: Any) -> Any:
            first, *others = args[at:] or (None,)
            self._check_call(name, first, (*others, *options.values()))
            value = function(*args, **options)
            return value if name in _SHALLOW else self._sized(value)

        return run

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _MAX_SOURCE:
            raise SecurityError(f"it is longer than {_MAX_SOURCE}")
        tree: nodes.Template = _Checks().visit(super()._parse(source, name, filename))
        return tree

    def concat(self, pieces: Iterable[str]) -> str:
        """Join what a template, a macro or a block writes."""
        held, length = [], 0
        for piece in pieces:
            length += len(piece)
            if length > _MAX_LENGTH:
                raise SecurityError(f"what it writes is longer than {_MAX_LENGTH}")
            held.append(piece)
        self._count(length // _LENGTH_OF_STEP)
        return "".join(held)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result may be long."""
        self._count(1)
        self._sized(left)
        self._sized(right)
        if operator == "*":
            for one, many in ((left, right), (right, left)):
                if isinstance(many, int) and hasattr(one, "__len__") and len(one) * many > _MAX_LENGTH:
                    raise SecurityError(f"a product is longer than {_MAX_LENGTH}")
        elif operator == "**" and (not isinstance(right, int) or abs(right) > 100):
            raise SecurityError("a power is too large")
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
        return self._sized(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
        """Call a function or method of a template."""
        value = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        self._count(_STEPS_OF_CALL)
        if value is None:
            self._sized((*args, *options.values()))
        else:
            self._check_call(getattr(function, "__name__", ""), value, (*args, *options.values()))
        return self._sized(super().call(context, function, *args, **options))

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,  # noqa: FBT001, FBT002  as transformers has it
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,  # noqa: FBT001, FBT002
    ) -> str:
        if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 99):
            raise SecurityError("an indent is not a number up to 99")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self.concat(encoder.iterencode(value))


@cache
def _environment() -> _BoundedEnvironment:
    """That of all templates: they cannot change it, and to make one takes longer than to render a short template."""
    return _BoundedEnvironment()


class _Checks(NodeTransformer):
    """Puts checks around the expressions that Jinja computes without asking its environment."""

    def visit(self, node: nodes.Node, *args: Any, **options: Any) -> Any:
        """Return what stands in the place of a node."""
        self.generic_visit(node, *args, **options)
        if isinstance(node, nodes.For):
            node.iter = _filtered(node.iter, "__counted")
        elif isinstance(node, nodes.Concat):
            return _filtered(nodes.List(node.nodes, lineno=node.lineno), "__joined")
        elif isinstance(node, nodes.Compare):
            each: Any
            for each in (node, *node.ops):
                each.expr = each.expr if isinstance(each.expr, nodes.Const) else _filtered(each.expr, "__sized")
        elif (
            isinstance(node, (nodes.List, nodes.Dict))
            or (isinstance(node, nodes.Tuple) and node.ctx == "load")
            or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice))
        ):
            return _filtered(node, "__sized")
        return node


class _Generation(Extension):
    """``{% generation %}``, by which transformers finds what the assistant has written, is its content."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # Jinja only looks into it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_widths(text: object) -> None:
    """Refuse a text with places to fill whose widths are many characters, or computed."""
    if isinstance(text, str) and (
        _COMPUTED_WIDTH.search(text) or sum(int(each[:8]) for each in _NUMBER.findall(text)) > _MAX_LENGTH // 4
    ):
        raise SecurityError("a width is too large")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
