"""The base class of all grammar nodes: an immutable term with a content digest and the operators."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

if TYPE_CHECKING:
    from structgen.grammar.limits import Limits

__all__ = ["Grammar"]


class Grammar:
    """A set of byte strings, as an immutable term.

    Equality and hash are structural (a digest computed once, without recursion). Operators: ``a + b`` concatenates, ``a
    | b`` is a choice, ``a & b`` and ``~a`` combine regular terms, ``a * 3`` repeats; a ``str`` or ``bytes`` operand is
    its literal. A grammar has no truth value.
    """

    __slots__ = ("_digest",)
    _fields: ClassVar[tuple[str, ...]] = ()
    _digest: bytes  # made at first use: most terms are compiled and never compared

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The direct sub-terms, left to right."""
        return ()

    def _own(self) -> object:
        """The content of this node except its children, for the digest."""
        return ()

    @property
    def digest(self) -> bytes:
        """A content hash of the term: equal terms have equal digests (16 bytes, BLAKE2b)."""
        if not hasattr(self, "_digest"):
            for node in postorder(self, known=lambda node: hasattr(node, "_digest")):
                inner = hashlib.blake2b(digest_size=16)
                inner.update(f"{type(node).__name__}{node._own()!r}".encode("utf-8", "surrogatepass"))
                for child in node.children:  # they come first in postorder
                    inner.update(child._digest)
                assign_field(node, "_digest", inner.digest())
        return self._digest

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, name) for name in self._fields)

    def __hash__(self) -> int:
        return int.from_bytes(self.digest[:8], "little", signed=True)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Grammar):
            return NotImplemented
        return self.digest == other.digest

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Validate ``Annotated[str, grammar]`` with pydantic."""
        return hooks.pydantic(self, repr(self), source, handler)

    def __repr__(self) -> str:
        return f"<Grammar {hooks.text(self, max_length=180)}>"

    def _repr_html_(self) -> str:
        from structgen.markup import card, text_block

        return card("Grammar", text_block(hooks.text(self, max_length=4000)))

    def __str__(self) -> str:
        return hooks.text(self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a grammar has no truth value: 'and', 'or' and 'not' do not combine grammars; write a | b, a & b or ~a, "
            "and 'is None' where a grammar may be missing"
        )

    def __format__(self, spec: str) -> str:
        raise TypeError(
            "a grammar in an f-string would be text that spells the term; write 'Name: ' + grammar to put it after a "
            "text, or {grammar!s} for the term as text"
        )

    def __add__(self, other: Grammar | str | bytes) -> Grammar:
        return hooks.operators.sequence(self, other) if _is_operand(other, "+") else NotImplemented

    def __radd__(self, other: Grammar | str | bytes) -> Grammar:
        return hooks.operators.sequence(other, self) if _is_operand(other, "+") else NotImplemented

    def __or__(self, other: Grammar | str | bytes) -> Grammar:
        return hooks.operators.choice(self, other) if _is_operand(other, "|") else NotImplemented

    def __ror__(self, other: Grammar | str | bytes) -> Grammar:
        return hooks.operators.choice(other, self) if _is_operand(other, "|") else NotImplemented

    def __and__(self, other: Grammar | str | bytes) -> Grammar:
        return hooks.operators.intersection(self, other) if _is_operand(other, "&") else NotImplemented

    def __rand__(self, other: Grammar | str | bytes) -> Grammar:
        return hooks.operators.intersection(other, self) if _is_operand(other, "&") else NotImplemented

    def __mul__(self, count: int) -> Grammar:
        if isinstance(count, bool) or not isinstance(count, int):
            return NotImplemented
        if count < 0:
            raise ValueError(f"*: a part cannot be repeated {count} times; give 0 or more")
        return hooks.operators.repeat(self, count, count)

    __rmul__ = __mul__

    def __invert__(self) -> Grammar:
        return hooks.operators.complement(self)

    def to_bytes(self) -> bytes:
        """Return the grammar in a compact binary form with a version and a content hash, which ``from_bytes`` reads.

        Equal grammars give equal bytes.  The entries of a report, and the Python type that a schema was made from, are
        no part of a grammar and are left out.  ``structgen/grammar/packing.py`` states the form.

        Raises:
            GrammarError: a count of more than 448 bits.

        Complexity: linear in the distinct nodes.

        >>> grammar = literal("a") | "b"
        >>> Grammar.from_bytes(grammar.to_bytes()) == grammar
        True
        """
        return hooks.pack(self)

    @staticmethod
    def from_bytes(data: bytes, *, limits: Limits | None = None) -> Grammar:
        """Return the grammar that ``to_bytes`` wrote.  The data may come from anyone: no code is run, all is checked.

        Args:
            data: the bytes.
            limits: bounds on the bytes and the nodes, by default ``Limits()``.

        Raises:
            GrammarError: other data, damaged or cut data, or data of a newer version.
            LimitExceeded: more bytes than ``limits.source_bytes``, or nodes than ``limits.grammar_nodes``.
            ArgumentError: ``data`` is not bytes.

        Complexity: linear in the bytes.
        """
        return hooks.unpack(data, limits)

    def many(self, min: int = 0, max: int | None = None, *, sep: Grammar | str | bytes | None = None) -> Grammar:
        """Repeat this term from ``min`` to ``max`` times (``None``: no bound), with ``sep`` between.

        >>> str(literal("a").many(1, 3, sep=","))
        '"a" ",a"{0,2}'
        """
        return hooks.operators.many(self, min, max, sep)

    def named(self, name: str) -> Grammar:
        """Report the text matched by this term as ``result.captures[name]``.

        Raises:
            TypeError: the name is no text.
            ValueError: the name is empty.
        """
        return hooks.operators.capture(self, name)

    def at_most(self, *, tokens: int | None = None, characters: int | None = None) -> Grammar:
        """Bound the tokens and the characters of this part.

        A token counts if it writes at least one byte of the part, even if it begins before the part or ends after it.
        Characters are Unicode code points. See :class:`Budget`.

        Raises:
            TypeError: a bound is no integer.
            ValueError: neither bound is given, or one is negative.

        >>> print(literal("ab").many().at_most(tokens=20))
        budget tokens 20 ("ab"*)
        """
        return hooks.operators.budget(self, tokens, characters)


class UnaryNode(Grammar):
    """A node with one sub-term, ``item``."""

    __slots__ = ()
    item: Grammar

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The item."""
        return (self.item,)


class NaryNode(Grammar):
    """A node whose sub-terms are ``items``."""

    __slots__ = ()
    items: tuple[Grammar, ...]

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The items."""
        return self.items


class Operators(Protocol):
    """The operators of :class:`Grammar`; ``nodes`` installs them, since the node types derive from it."""

    def sequence(self, *items: Grammar | str | bytes) -> Grammar: ...
    def choice(self, *items: Grammar | str | bytes) -> Grammar: ...
    def intersection(self, *items: Grammar | str | bytes) -> Grammar: ...
    def complement(self, item: Grammar) -> Grammar: ...
    def repeat(self, item: Grammar, min: int, max: int | None) -> Grammar: ...
    def many(self, item: Grammar, min: int, max: int | None, sep: Grammar | str | bytes | None) -> Grammar: ...
    def capture(self, item: Grammar, name: str) -> Grammar: ...
    def budget(self, item: Grammar, tokens: int | None, characters: int | None) -> Grammar: ...


class Hooks:
    """Installed once, at import: ``operators`` by ``structgen.grammar.nodes``, the others by ``structgen.grammar``."""

    operators: Operators
    text: Callable[..., str]
    pydantic: Callable[[Grammar, str, Any, Any], Any]
    pack: Callable[[Grammar], bytes]
    unpack: Callable[[bytes, Limits | None], Grammar]


hooks: Final = Hooks()


builtin_max = max


assign_field = object.__setattr__  # the only way to write a field of an immutable node
new_node = object.__new__


def set_fields(node: Grammar, **fields: object) -> None:
    for name, value in fields.items():
        assign_field(node, name, value)


def _is_operand(value: object, operator: str) -> bool:
    """Whether an operator takes ``value``.

    Raises:
        TypeError: it is of a type that is often a mistake.
    """
    if isinstance(value, (Grammar, str, bytes)):
        return True
    if value is None:
        raise TypeError(f"{operator}: None is no grammar; write optional(grammar) for a part that may be left out")
    if isinstance(value, (int, float)):
        hint = "; start a sum of grammars with text(''), as sum(parts, text(''))" if value == 0 else ""
        raise TypeError(f"{operator}: {value!r} is no grammar; write a number as text{hint}")
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        raise TypeError(f"{operator}: {type(value).__name__} is no grammar; write select([...]) for any one of several")
    return False


def postorder(root: Grammar, *, known: Callable[[Grammar], bool] | None = None) -> Iterator[Grammar]:
    """Yield every distinct node object below ``root``, children first, without recursion.

    A node for which ``known`` is true is not visited, nor are the nodes below it.
    """
    seen: set[int] = set()
    stack: list[tuple[Grammar, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif id(node) not in seen and not (known is not None and known(node)):
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))


def checked_term(value: object, what: str) -> Grammar:
    if not isinstance(value, Grammar):
        raise TypeError(f"{what}: expected a Grammar, found {type(value).__name__}; wrap text with literal()")
    return value


def checked_terms(values: Iterable[Grammar], what: str) -> tuple[Grammar, ...]:
    items = tuple(values)
    for item in items:  # a loop: a generator doubles the cost, and front ends make thousands of these
        if not isinstance(item, Grammar):
            checked_term(item, what)
    return items
