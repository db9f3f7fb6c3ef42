"""The grammar IR: immutable values that say which byte strings belong to a language.

A :class:`Grammar` is a term.  Its meaning is a set of byte strings, stated by ``structgen.testing.reference`` in
plain Python; everything fast is compared with that.  Terms know nothing of tokens: a vocabulary meets them only
in ``structgen.engine``.

Scoping: :class:`Rules` binds names for the expressions inside it (a ``letrec``), and a :class:`Reference` belongs
to the innermost :class:`Rules` that binds its name.  A term without free references is *closed*; closed terms
compose freely, for no name of one can capture a name of another.

No function here recurses on the depth of a term: a grammar nested 100,000 deep is only data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias, final
from typing import Literal as Literal_

__all__ = [
    "ANY_CHAR",
    "EMPTY",
    "EPSILON",
    "Budget",
    "ByteClass",
    "Capture",
    "CharClass",
    "Choice",
    "Complement",
    "Distinct",
    "Grammar",
    "Intersection",
    "JsonString",
    "Label",
    "LabelKind",
    "Literal",
    "Permutation",
    "Reference",
    "Repeat",
    "Rules",
    "Sequence",
    "Shared",
    "SpecialToken",
    "Tempered",
    "TokenSet",
    "choice",
    "choice_of",
    "literal",
    "repeat",
    "sequence",
    "sequence_of",
]

MAX_CODE_POINT: Final = 0x10FFFF
SURROGATES: Final = (0xD800, 0xDFFF)
MAX_TOKEN_ID: Final = (1 << 31) - 1

LabelKind: TypeAlias = Literal_["a-label", "bidi", "u-label"]
"""What a :class:`Label` may be."""


class Grammar:
    """A set of byte strings, as an immutable term.

    Equality and hash go by structure (a digest computed once, without recursion).  Operators: ``a + b``
    concatenates, ``a | b`` is either, ``a & b`` and ``~a`` combine regular terms, ``a * 3`` is three of them; a ``str``
    or ``bytes`` operand stands for its literal.  A grammar has no truth value.
    """

    __slots__ = ("_digest",)
    _fields: ClassVar[tuple[str, ...]] = ()
    _digest: bytes  # made at first use: most terms are compiled and never compared

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The direct sub-terms, left to right."""
        return ()

    def _own(self) -> object:
        """What this node holds beside its children, for the digest."""
        return ()

    @property
    def digest(self) -> bytes:
        """A content hash of the term: equal terms have equal digests (16 bytes, BLAKE2b)."""
        if not hasattr(self, "_digest"):
            for node in postorder(self, known=lambda node: hasattr(node, "_digest")):
                inner = hashlib.blake2b(digest_size=16)
                inner.update(f"{type(node).__name__}{node._own()!r}".encode("utf-8", "surrogatepass"))
                for child in node.children:  # which come first in postorder
                    inner.update(child._digest)
                _assign(node, "_digest", inner.digest())
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
        from structgen.grammar.markers import validated  # which need grammars

        return validated(self, repr(self), source, handler)

    def __repr__(self) -> str:
        from structgen.grammar.printer import to_text  # the printer needs the node types

        return f"<Grammar {to_text(self, max_length=400)}>"

    def __str__(self) -> str:
        from structgen.grammar.printer import to_text

        return to_text(self)

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
        return sequence(self, _coerced(other)) if _is_operand(other, "+") else NotImplemented

    def __radd__(self, other: Grammar | str | bytes) -> Grammar:
        return sequence(_coerced(other), self) if _is_operand(other, "+") else NotImplemented

    def __or__(self, other: Grammar | str | bytes) -> Grammar:
        return choice(self, _coerced(other)) if _is_operand(other, "|") else NotImplemented

    def __ror__(self, other: Grammar | str | bytes) -> Grammar:
        return choice(_coerced(other), self) if _is_operand(other, "|") else NotImplemented

    def __and__(self, other: Grammar | str | bytes) -> Grammar:
        return Intersection((self, _coerced(other))) if _is_operand(other, "&") else NotImplemented

    def __rand__(self, other: Grammar | str | bytes) -> Grammar:
        return Intersection((_coerced(other), self)) if _is_operand(other, "&") else NotImplemented

    def __mul__(self, count: int) -> Grammar:
        if isinstance(count, bool) or not isinstance(count, int):
            return NotImplemented
        if count < 0:
            raise ValueError(f"*: a part cannot stand {count} times; give 0 or more")
        return repeat(self, count, count)

    __rmul__ = __mul__

    def __invert__(self) -> Grammar:
        return Complement(self)

    def many(self, min: int = 0, max: int | None = None, *, sep: Grammar | str | bytes | None = None) -> Grammar:
        """Repeat this term from ``min`` to ``max`` times (``None``: no bound), with ``sep`` between.

        >>> str(literal("a").many(1, 3, sep=","))
        '"a" ",a"{0,2}'
        """
        if sep is None:
            return repeat(self, min, max)
        if max is not None and (max < min or max < 0):
            raise ValueError(f"many: the bounds {min}..{max} contain no count; give 0 <= min <= max")
        if max == 0:
            return EPSILON
        further = repeat(sequence(_coerced(sep), self), builtin_max(min - 1, 0), None if max is None else max - 1)
        joined = sequence(self, further)
        return joined if min > 0 else choice(EPSILON, joined)

    def named(self, name: str) -> Grammar:
        """Report the text matched by this term as ``result.captures[name]``."""
        return Capture(name, self)

    def at_most(self, *, tokens: int | None = None, characters: int | None = None) -> Grammar:
        """Keep to the readings in which this part takes at most so many tokens, and so many characters.

        A token counts if it writes at least one byte of the part: those count too that begin before it or end after
        it.  Characters are Unicode code points.  See :class:`Budget`.

        Raises:
            TypeError: a bound is no integer.
            ValueError: neither bound is given, or one is negative.

        >>> print(literal("ab").many().at_most(tokens=20))
        budget tokens 20 ("ab"*)
        """
        return Budget(self, tokens, characters)


builtin_max = max


_assign = object.__setattr__  # the only way to write a field of an immutable node
_new = object.__new__


def _set(node: Grammar, **fields: object) -> None:
    for name, value in fields.items():
        _assign(node, name, value)


def _is_operand(value: object, operator: str) -> bool:
    """Whether an operator takes ``value``.

    Raises:
        TypeError: it is one of those that are often meant otherwise.
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


def _coerced(value: Grammar | str | bytes) -> Grammar:
    return value if isinstance(value, Grammar) else literal(value)


@final
class Literal(Grammar):
    """Exactly the bytes ``data``; empty ``data`` is the empty string."""

    __slots__ = ("data",)
    _fields = ("data",)
    data: bytes

    def __init__(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise TypeError(f"Literal: data must be bytes, not {type(data).__name__}; use literal() for str")
        _assign(self, "data", data)

    def _own(self) -> object:
        return self.data


@final
class ByteClass(Grammar):
    """One byte out of ``ranges``: sorted, disjoint, inclusive pairs; no ranges is the empty language."""

    __slots__ = ("ranges",)
    _fields = ("ranges",)
    ranges: tuple[tuple[int, int], ...]

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        _set(self, ranges=_normalised(ranges, maximum=255, what="ByteClass"))

    def _own(self) -> object:
        return self.ranges


@final
class CharClass(Grammar):
    """One Unicode scalar value out of ``ranges``, written in UTF-8.

    Ranges are sorted, disjoint and inclusive.  Surrogates (U+D800..U+DFFF) are not scalar values and are removed.
    """

    __slots__ = ("ranges",)
    _fields = ("ranges",)
    ranges: tuple[tuple[int, int], ...]

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged = _normalised(ranges, maximum=MAX_CODE_POINT, what="CharClass")
        _set(self, ranges=tuple(_without_surrogates(merged)))

    def _own(self) -> object:
        return self.ranges


@final
class Sequence(Grammar):
    """The items one after the other; no items is the empty string."""

    __slots__ = ("items",)
    _fields = ("items",)
    items: tuple[Grammar, ...]

    def __init__(self, items: Iterable[Grammar]) -> None:
        _assign(self, "items", _terms(items, "Sequence"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return self.items


@final
class Choice(Grammar):
    """Any one of the items; no items is the empty language.  Ambiguity is allowed."""

    __slots__ = ("items",)
    _fields = ("items",)
    items: tuple[Grammar, ...]

    def __init__(self, items: Iterable[Grammar]) -> None:
        _assign(self, "items", _terms(items, "Choice"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return self.items


@final
class Repeat(Grammar):
    """``item`` from ``min`` to ``max`` times; ``max=None`` is unbounded."""

    __slots__ = ("item", "max", "min")
    _fields = ("item", "min", "max")
    item: Grammar
    min: int
    max: int | None

    def __init__(self, item: Grammar, min: int = 0, max: int | None = None) -> None:
        if min < 0 or (max is not None and max < min):
            raise ValueError(f"Repeat: the bounds {min}..{max} contain no count; give 0 <= min <= max")
        _assign(self, "item", _term(item, "Repeat"))
        _assign(self, "min", min)
        _assign(self, "max", max)

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)

    def _own(self) -> object:
        return self.min, self.max


@final
class Permutation(Grammar):
    """Members in any order, ``separator`` between them.

    Each of ``required`` is a member exactly once, each of ``optional`` at most once, and those of ``rest`` are members
    any number of times; the number of members, these included, is from ``min`` to ``max`` (``None``: no bound).
    No members are the empty string.

    The order of ``required`` and ``optional`` has no meaning.  Nothing is multiplied out: n items have 2 ** n states,
    of which only those exist that a text has led to.

    Source: R. D. Cameron, "Extending context-free grammars with permutation phrases" (1993).
    """

    __slots__ = ("max", "min", "optional", "required", "rest", "separator")
    _fields = ("required", "optional", "rest", "separator", "min", "max")
    required: tuple[Grammar, ...]
    optional: tuple[Grammar, ...]
    rest: Grammar
    separator: Grammar
    min: int
    max: int | None

    def __init__(
        self,
        required: Iterable[Grammar] = (),
        optional: Iterable[Grammar] = (),
        rest: Grammar | None = None,
        separator: Grammar | None = None,
        min: int = 0,
        max: int | None = None,
    ) -> None:
        """Make the term; without ``rest`` there are no further members, without ``separator`` nothing between."""
        once = _terms(required, "Permutation")
        least = builtin_max(min, len(once))
        if min < 0 or (max is not None and max < least):
            raise ValueError(
                f"Permutation: the bounds {min}..{max} leave no number of members; give 0 <= min <= max, and as many "
                f"as are required ({len(once)})"
            )
        _set(
            self,
            required=once,
            optional=_terms(optional, "Permutation"),
            rest=EMPTY if rest is None else _term(rest, "Permutation"),
            separator=EPSILON if separator is None else _term(separator, "Permutation"),
            min=min,
            max=max,
        )

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (*self.required, *self.optional, self.rest, self.separator)

    def _own(self) -> object:
        return len(self.required), self.min, self.max


@final
class Reference(Grammar):
    """The rule called ``name`` of the innermost enclosing :class:`Rules` that binds it."""

    __slots__ = ("name",)
    _fields = ("name",)
    name: str

    def __init__(self, name: str) -> None:
        _set(self, name=name)

    def _own(self) -> object:
        return self.name


@final
class Rules(Grammar):
    """``body`` with the rules of ``rules`` (name, expression) in scope, in the expressions too.

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
        _terms([body, *(term for _, term in pairs)], "Rules")
        _set(self, rules=pairs, body=body)

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (*(term for _, term in self.rules), self.body)

    def _own(self) -> object:
        return tuple(name for name, _ in self.rules)


@final
class Intersection(Grammar):
    """Strings that belong to every item.  All items must be regular; no items is every text."""

    __slots__ = ("items",)
    _fields = ("items",)
    items: tuple[Grammar, ...]

    def __init__(self, items: Iterable[Grammar]) -> None:
        _set(self, items=_terms(items, "Intersection"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return self.items


@final
class Complement(Grammar):
    """The texts (well-formed UTF-8 strings) that do not belong to ``item``, which must be regular."""

    __slots__ = ("item",)
    _fields = ("item",)
    item: Grammar

    def __init__(self, item: Grammar) -> None:
        _set(self, item=_term(item, "Complement"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)


@final
class Capture(Grammar):
    """``item``, whose matched text is reported under ``name``."""

    __slots__ = ("item", "name")
    _fields = ("name", "item")
    name: str
    item: Grammar

    def __init__(self, name: str, item: Grammar) -> None:
        _set(self, name=name, item=_term(item, "Capture"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)

    def _own(self) -> object:
        return self.name


@final
class Budget(Grammar):
    """The texts of ``item`` of at most ``characters`` characters, written in at most ``tokens`` tokens.

    Characters are Unicode code points: they are a property of the text, and with ``characters`` the item must be
    regular, and members that are no well-formed UTF-8 are left out.

    Tokens are a property of the token sequence.  A token counts for an occurrence of the part if the part holds at
    least one byte of it, or if it is a special token of the part; the one in which the part begins and the one in which
    it ends count where they hold bytes of it, whatever else they hold.  Where a text has several readings, each has
    counts of its own: a token sequence is accepted if in some reading each occurrence keeps to its budget.

    A byte string alone has no tokens, so that what takes no account of tokens (matching a text, the reference) takes a
    budget of tokens for the item.
    """

    __slots__ = ("characters", "item", "tokens")
    _fields = ("item", "tokens", "characters")
    item: Grammar
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
        _set(self, item=_term(item, "Budget"), tokens=tokens, characters=characters)

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)

    def _own(self) -> object:
        return self.tokens, self.characters


@final
class SpecialToken(Grammar):
    """One special token of the vocabulary, by its text (``"<|im_end|>"``) or its id.

    It is a symbol of its own: no text ever matches it, and it never matches text.

    With ``or_text``, a vocabulary that has no special token of that text writes the text instead: what a family of
    models calls ``<tool_call>`` is a special token of some and plain text of others.
    """

    __slots__ = ("or_text", "token")
    _fields = ("token", "or_text")
    token: str | int
    or_text: bool

    def __init__(self, token: str | int, or_text: bool = False) -> None:
        if or_text and not (isinstance(token, str) and token):
            raise ValueError(f"SpecialToken: only a token that is named by its text has one; found {token!r}")
        _set(self, token=token, or_text=or_text)

    def _own(self) -> object:
        return (self.token, True) if self.or_text else self.token


@final
class TokenSet(Grammar):
    """One token of a set, as a symbol of its own: whatever its bytes are, they are read by nothing else.

    Unlike a :class:`SpecialToken`, it may be an ordinary token of the vocabulary.  The same token may then be read in
    two ways, as a symbol here and as text elsewhere; both count.  Text never matches it: what takes bytes one by one
    has no members with it.

    An EOS token is never among them: EOS is allowed wherever the grammar may end.

    Attributes:
        tokens: special tokens by text, and ids; a pair of ids is a range, both ends included.  They are kept sorted and
            merged, the texts first.
        is_excluded: whether it is any token but these: every id of the vocabulary that stands for text or is a special
            token.
    """

    __slots__ = ("is_excluded", "tokens")
    _fields = ("tokens", "is_excluded")
    tokens: tuple[str | int | tuple[int, int], ...]
    is_excluded: bool

    def __init__(self, tokens: Iterable[str | int | tuple[int, int]], is_excluded: bool = False) -> None:
        texts: set[str] = set()
        ranges: list[tuple[int, int]] = []
        for token in tokens:
            if isinstance(token, str):
                texts.add(token)
            else:
                ranges.append((token, token) if isinstance(token, int) else token)
        merged = _normalised(ranges, maximum=MAX_TOKEN_ID, what="TokenSet")
        ids = (low if low == high else (low, high) for low, high in merged)
        _set(self, tokens=(*sorted(texts), *ids), is_excluded=is_excluded)

    def _own(self) -> object:
        return self.tokens, self.is_excluded


@final
class Tempered(Grammar):
    """``item``, whose tokens are drawn at ``temperature``; the language is that of ``item``.

    A token is drawn at the temperature of the innermost part that it may stand in.  Where several readings are
    possible, as at the end of a part that may also go on, the highest of their temperatures holds, and a reading
    outside of all such parts has none.  Inside of what must be regular it means nothing.
    """

    __slots__ = ("item", "temperature")
    _fields = ("item", "temperature")
    item: Grammar
    temperature: float

    def __init__(self, item: Grammar, temperature: float) -> None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise TypeError(f"Tempered: expected a number as the temperature, found {type(temperature).__name__}")
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"Tempered: a temperature is from 0 on and finite; found {temperature!r}")
        _set(self, item=_term(item, "Tempered"), temperature=float(temperature))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)

    def _own(self) -> object:
        return self.temperature


@final
class JsonString(Grammar):
    r"""A JSON string literal, quotes included, whose *decoded* text belongs to ``value`` (regular).

    Every spelling that RFC 8259 allows is a member: raw characters, short escapes (``\n``, ``\/`` ...), ``\uXXXX``
    in either case and surrogate pairs.  Lone surrogates are not, for they decode to no text.
    """

    __slots__ = ("value",)
    _fields = ("value",)
    value: Grammar

    def __init__(self, value: Grammar) -> None:
        _set(self, value=_term(value, "JsonString"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.value,)


@final
class Shared(Grammar):
    """``item`` compiled as one rule of its own, once for all grammars on a vocabulary.

    The language is that of ``item``, which must be closed.  Front ends wrap what many grammars have in common (any
    JSON string, any JSON value, a date), so that its mask rows are computed once in a process.
    """

    __slots__ = ("item",)
    _fields = ("item",)
    item: Grammar

    def __init__(self, item: Grammar) -> None:
        _set(self, item=_term(item, "Shared"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)


@final
class Distinct(Grammar):
    """The JSON arrays and objects of ``item`` in which nothing is repeated.

    No two items of the array are equal JSON values (1 equals 1.0, the order of members does not matter), and no object
    inside, nor the object itself, has one name twice.  Every member of ``item`` must be one JSON array or object,
    without white space around it, and the text must tell where it begins.

    With ``is_endless``, the maker promises that the items and names that are required after a complete one can always
    be ones that are not there yet.  Masks then need no search where nothing can be repeated.
    With ``is_spare``, the maker promises that at most one item, or one name that may stand elsewhere in its object, is
    ever required: closing the container is possible from its first item on.  Then masks within a budget need no search
    either, and it is endless too.
    """

    __slots__ = ("is_endless", "is_spare", "item")
    _fields = ("item", "is_spare", "is_endless")
    item: Grammar
    is_spare: bool
    is_endless: bool

    def __init__(self, item: Grammar, is_spare: bool = False, is_endless: bool = False) -> None:
        _set(self, item=_term(item, "Distinct"), is_spare=is_spare, is_endless=is_endless or is_spare)

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)

    def _own(self) -> object:
        return self.is_spare, self.is_endless


@final
class Label(Grammar):
    """The texts of ``item`` that begin with a label of a host name which may stand there.

    ``kind`` says which (RFC 5890 to 5893; none with characters that compose with others):

    * ``"a-label"``: ``xn--``, in any case, and Punycode, up to the first byte that is no letter, digit or hyphen.  It
      has no right-to-left characters.
    * ``"bidi"``: the same that obeys the rule for names with right-to-left characters.
    * ``"u-label"``: letters that take two bytes each.  Each of its beginnings takes at most 63 octets as an A-label.

    The members of ``item`` must be all such texts of up to 59 characters (from 1 after ``xn--``), valid or not, then
    one byte of another kind; letters are the left-to-right ones of Greek (U+0380 to U+03FF) or of Cyrillic (U+0400 to
    U+04FF).  All of this may also be written in escapes of JSON by code point.  The text must tell where members begin,
    and wherever a label is possible, something else must be that takes fewer bytes.
    Where tokens do not spell every text of ASCII, there are no labels.
    """

    __slots__ = ("item", "kind")
    _fields = ("item", "kind")
    item: Grammar
    kind: LabelKind

    def __init__(self, item: Grammar, kind: LabelKind = "a-label") -> None:
        if kind not in ("a-label", "bidi", "u-label"):
            raise ValueError(f"Label: there is no kind {kind!r}; give 'a-label', 'bidi' or 'u-label'")
        _set(self, item=_term(item, "Label"), kind=kind)

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)

    def _own(self) -> object:
        return self.kind


def literal(text: str | bytes) -> Grammar:
    """The language of exactly ``text`` (``str`` is written in UTF-8; lone surrogates are refused)."""
    if isinstance(text, str):
        try:
            return Literal(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(
                f"literal: lone surrogate {text[error.start]!r} at character {error.start} has no UTF-8 form; "
                "pass bytes if you mean raw bytes"
            ) from None
    return Literal(text)


def sequence(*items: Grammar | str | bytes) -> Grammar:
    """The items one after the other, with nested sequences spliced and adjacent literals joined."""
    flat: list[Grammar] = []
    for item in items:
        term = _coerced(item)
        for part in term.items if isinstance(term, Sequence) else (term,):
            if isinstance(part, Literal):
                if not part.data:
                    continue
                if flat and isinstance(flat[-1], Literal):
                    flat[-1] = Literal(flat[-1].data + part.data)
                    continue
            flat.append(part)
    if not flat:
        return EPSILON
    return flat[0] if len(flat) == 1 else Sequence(flat)


def choice(*items: Grammar | str | bytes) -> Grammar:
    """Any one of the items, with nested choices spliced."""
    flat: list[Grammar] = []
    for item in items:
        term = _coerced(item)
        flat.extend(term.items if isinstance(term, Choice) else (term,))
    return flat[0] if len(flat) == 1 else Choice(flat)


def repeat(item: Grammar | str | bytes, min: int = 0, max: int | None = None) -> Grammar:
    """``item`` from ``min`` to ``max`` times (``None``: unbounded)."""
    return Repeat(_coerced(item), min, max)


def postorder(root: Grammar, *, known: Callable[[Grammar], bool] | None = None) -> Iterator[Grammar]:
    """Yield every distinct node object below ``root``, children first, without recursion.

    Where ``known`` holds of a node, neither it nor what is below it is visited.
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


def _term(value: object, what: str) -> Grammar:
    if not isinstance(value, Grammar):
        raise TypeError(f"{what}: expected a Grammar, found {type(value).__name__}; wrap text with literal()")
    return value


def _terms(values: Iterable[Grammar], what: str) -> tuple[Grammar, ...]:
    items = tuple(values)
    for item in items:  # a loop: front ends make thousands of these, and a generator doubles their price
        if not isinstance(item, Grammar):
            _term(item, what)
    return items


_assign_sequence = vars(Sequence)["items"].__set__  # looks up no name
_assign_choice = vars(Choice)["items"].__set__


def sequence_of(items: tuple[Grammar, ...]) -> Grammar:
    """``Sequence(items)`` of what is known to be terms; front ends make hundreds of thousands of these."""
    node = _new(Sequence)
    _assign_sequence(node, items)
    return node


def choice_of(items: tuple[Grammar, ...]) -> Grammar:
    """``Choice(items)`` of what is known to be terms."""
    node = _new(Choice)
    _assign_choice(node, items)
    return node


def _normalised(ranges: Iterable[tuple[int, int]], *, maximum: int, what: str) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if not 0 <= low <= high <= maximum:
            raise ValueError(f"{what}: range {low}..{high} is not within 0..{maximum}")
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], builtin_max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for low, high in ranges:
        if low < SURROGATES[0]:
            yield low, min(high, SURROGATES[0] - 1)
        if high > SURROGATES[1]:
            yield builtin_max(low, SURROGATES[1] + 1), high


EPSILON: Final[Grammar] = Literal(b"")
"""The language of the empty string alone."""
EMPTY: Final[Grammar] = Choice(())
"""The empty language."""
ANY_CHAR: Final[Grammar] = CharClass([(0, MAX_CODE_POINT)])
"""Any one Unicode scalar value, in UTF-8."""
