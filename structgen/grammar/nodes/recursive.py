"""Rules and references, and the nodes that wrap one part: captures, budgets, temperatures, shared rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from structgen.grammar.nodes.base import Grammar, UnaryNode, checked_term, checked_terms, set_fields

__all__ = ["Budget", "Capture", "Reference", "Rules", "Shared", "Tempered"]


@final
class Reference(Grammar):
    """The rule called ``name`` of the innermost enclosing :class:`Rules` that binds it."""

    __slots__ = ("name",)
    _fields = ("name",)
    name: str

    def __init__(self, name: str) -> None:
        set_fields(self, name=name)

    def _own(self) -> object:
        return self.name


@final
class Rules(Grammar):
    """``body`` with ``rules`` (name, expression) in scope, in the expressions too.

    >>> nested = Rules({"s": choice("x", sequence("(", Reference("s"), ")"))}, Reference("s"))
    """

    __slots__ = ("body", "rules")
    _fields = ("rules", "body")
    rules: tuple[tuple[str, Grammar], ...]
    body: Grammar

    def __init__(self, rules: Mapping[str, Grammar] | Iterable[tuple[str, Grammar]], body: Grammar) -> None:
        pairs = tuple(rules.items()) if isinstance(rules, Mapping) else tuple(rules)
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"Rules: {twice} bound more than once; give every rule its own name")
        checked_terms([body, *(term for _, term in pairs)], "Rules")
        set_fields(self, rules=pairs, body=body)

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The expressions, then the body."""
        return (*(term for _, term in self.rules), self.body)

    def _own(self) -> object:
        return tuple(name for name, _ in self.rules)


@final
class Capture(UnaryNode):
    """``item``, whose matched text is reported under ``name``."""

    __slots__ = ("item", "name")
    _fields = ("name", "item")
    name: str

    def __init__(self, name: str, item: Grammar) -> None:
        set_fields(self, name=name, item=checked_term(item, "Capture"))

    def _own(self) -> object:
        return self.name


@final
class Budget(UnaryNode):
    """The strings of ``item`` of at most ``characters`` characters, written in at most ``tokens`` tokens.

    Characters are Unicode code points. With ``characters``, the item must be regular, and its strings that are not
    well-formed UTF-8 are left out.

    Tokens are a property of the token sequence. A token counts for an occurrence of the part if it writes at least one
    byte of the part, or is a special token of the part; so the tokens at both edges count. Each parse of a string has
    its own counts: a token sequence is accepted if some parse keeps every occurrence within its budget.

    A byte string alone has no tokens, so matching bytes ignores a token budget.
    """

    __slots__ = ("characters", "item", "tokens")
    _fields = ("item", "tokens", "characters")
    tokens: int | None
    characters: int | None

    def __init__(self, item: Grammar, tokens: int | None = None, characters: int | None = None) -> None:
        if tokens is None and characters is None:
            raise ValueError("Budget: no bound is given; say how many tokens or characters there may be")
        for what, bound in (("tokens", tokens), ("characters", characters)):
            if bound is None:
                continue
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise TypeError(f"Budget: expected an integer as the number of {what}, found {type(bound).__name__}")
            if bound < 0:
                raise ValueError(f"Budget: {bound} {what} are fewer than none; give 0 or more")
        set_fields(self, item=checked_term(item, "Budget"), tokens=tokens, characters=characters)

    def _own(self) -> object:
        return self.tokens, self.characters


@final
class Tempered(UnaryNode):
    """``item``, whose tokens are sampled at ``temperature``; the language is that of ``item``.

    A token is sampled at the temperature of the innermost part that contains it. If several parses are possible, as at
    the end of a part that may also go on, the highest of their temperatures applies; a parse outside of all such parts
    has none. In a regular context it has no effect.
    """

    __slots__ = ("item", "temperature")
    _fields = ("item", "temperature")
    temperature: float

    def __init__(self, item: Grammar, temperature: float) -> None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise TypeError(f"Tempered: expected a number as the temperature, found {type(temperature).__name__}")
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"Tempered: a temperature must be finite and at least 0; found {temperature!r}")
        set_fields(self, item=checked_term(item, "Tempered"), temperature=float(temperature))

    def _own(self) -> object:
        return self.temperature


@final
class Shared(UnaryNode):
    """``item`` compiled as one rule of its own, once for all grammars on a vocabulary.

    The language is that of ``item``, which must be closed.  Front ends wrap terms that many grammars share (any JSON
    string, any JSON value, a date), so that their mask rows are computed once per process.
    """

    __slots__ = ("item",)
    _fields = ("item",)

    def __init__(self, item: Grammar) -> None:
        set_fields(self, item=checked_term(item, "Shared"))
