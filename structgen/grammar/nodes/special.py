"""Nodes for tokens, and for the parts of JSON and host names that are not regular."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal as Literal_, TypeAlias, final

from structgen.grammar.nodes.base import Grammar, UnaryNode, checked_term, set_fields
from structgen.grammar.nodes.regular import merged_ranges

__all__ = ["Distinct", "JsonString", "Label", "LabelKind", "SpecialToken", "TokenSet"]

MAX_TOKEN_ID: Final = (1 << 31) - 1

LabelKind: TypeAlias = Literal_["a-label", "bidi", "u-label"]
"""The kinds of a :class:`Label`."""


@final
class SpecialToken(Grammar):
    """One special token of the vocabulary, by its text (``"<|im_end|>"``) or its id.

    No string matches it, and it matches no string.

    With ``or_text``, a vocabulary without a special token of that text writes the text instead: in one family of
    models, ``<tool_call>`` may be a special token for some and plain text for others.
    """

    __slots__ = ("or_text", "token")
    _fields = ("token", "or_text")
    token: str | int
    or_text: bool

    def __init__(self, token: str | int, or_text: bool = False) -> None:  # noqa: FBT001, FBT002  public, and copies pass it by position
        if or_text and not (isinstance(token, str) and token):
            raise ValueError(f"SpecialToken: or_text needs a token named by its text; found {token!r}")
        set_fields(self, token=token, or_text=or_text)

    def _own(self) -> object:
        return (self.token, True) if self.or_text else self.token


@final
class TokenSet(Grammar):
    """One token of a set, whatever its bytes are.

    Unlike a :class:`SpecialToken`, it may be an ordinary token of the vocabulary.  The same token may then be parsed in
    two ways, as this symbol and as text. No string matches it: matching byte by byte never succeeds here.

    EOS tokens are excluded: EOS is allowed wherever the grammar may end.

    Attributes:
        tokens: special tokens by text, and ids; a pair of ids is an inclusive range. Sorted and merged, strings first.
        is_excluded: match any token but these: every other id with text, and every other special token.
    """

    __slots__ = ("is_excluded", "tokens")
    _fields = ("tokens", "is_excluded")
    tokens: tuple[str | int | tuple[int, int], ...]
    is_excluded: bool

    def __init__(
        self,
        tokens: Iterable[str | int | tuple[int, int]],
        is_excluded: bool = False,  # noqa: FBT001, FBT002  public, and copies pass it by position
    ) -> None:
        texts: set[str] = set()
        ranges: list[tuple[int, int]] = []
        for token in tokens:
            if isinstance(token, str):
                texts.add(token)
            else:
                ranges.append((token, token) if isinstance(token, int) else token)
        merged = merged_ranges(ranges, maximum=MAX_TOKEN_ID, what="TokenSet")
        ids = (low if low == high else (low, high) for low, high in merged)
        set_fields(self, tokens=(*sorted(texts), *ids), is_excluded=is_excluded)

    def _own(self) -> object:
        return self.tokens, self.is_excluded


@final
class JsonString(Grammar):
    r"""A JSON string literal, quotes included, whose *decoded* text belongs to ``value`` (regular).

    Every spelling that RFC 8259 allows is valid: raw characters, short escapes (``\n``, ``\/`` ...), ``\uXXXX`` in
      either case and surrogate pairs. Lone surrogates are not, since they decode to no text.
    """

    __slots__ = ("value",)
    _fields = ("value",)
    value: Grammar

    def __init__(self, value: Grammar) -> None:
        set_fields(self, value=checked_term(value, "JsonString"))

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The value."""
        return (self.value,)


@final
class Distinct(UnaryNode):
    """The JSON arrays and objects of ``item`` without duplicates.

    No two items of the array are equal JSON values (1 equals 1.0, the order of members does not matter), and no
    object, inside or outermost, has a name twice. Every string of ``item`` must be one JSON array or object without
    white space around it, and the position where it begins must be unambiguous.

    With ``is_endless``, the caller promises that the items and names required after a complete one can always be new
    ones. Masks then need no search where nothing can be repeated. With ``is_spare``, the caller promises that at most
    one item, or one name that may occur elsewhere in its object, is ever required: the container can be closed from its
    first item on. Then masks within a budget need no search either; it implies ``is_endless``.
    """

    __slots__ = ("is_endless", "is_spare", "item")
    _fields = ("item", "is_spare", "is_endless")
    is_spare: bool
    is_endless: bool

    def __init__(
        self,
        item: Grammar,
        is_spare: bool = False,  # noqa: FBT001, FBT002  public, and copies pass it by position
        is_endless: bool = False,  # noqa: FBT001, FBT002  likewise
    ) -> None:
        set_fields(self, item=checked_term(item, "Distinct"), is_spare=is_spare, is_endless=is_endless or is_spare)

    def _own(self) -> object:
        return self.is_spare, self.is_endless


@final
class Label(UnaryNode):
    """The strings of ``item`` that begin with a valid label of a host name.

    ``kind`` selects the rule (RFC 5890 to 5893; no label has composing characters):

    * ``"a-label"``: ``xn--``, in any case, and Punycode, up to the first byte that is no letter, digit or hyphen.  It
      has no right-to-left characters.
    * ``"bidi"``: the same, by the rule for names with right-to-left characters.
    * ``"u-label"``: letters that take two bytes each.  Each of its prefixes takes at most 63 octets as an A-label.

    ``item`` must match all such strings of up to 59 characters (from 1 after ``xn--``), valid or not, then one byte of
    another kind. Letters are the left-to-right ones of Greek (U+0380 to U+03FF) or of Cyrillic (U+0400 to U+04FF).
    Characters may also be written as JSON escapes by code point. The position where ``item`` begins must be
    unambiguous, and wherever a label is possible, a shorter alternative must be.
    If the tokens do not spell every ASCII string, no label is allowed.
    """

    __slots__ = ("item", "kind")
    _fields = ("item", "kind")
    kind: LabelKind

    def __init__(self, item: Grammar, kind: LabelKind = "a-label") -> None:
        if kind not in ("a-label", "bidi", "u-label"):
            raise ValueError(f"Label: there is no kind {kind!r}; give 'a-label', 'bidi' or 'u-label'")
        set_fields(self, item=checked_term(item, "Label"), kind=kind)

    def _own(self) -> object:
        return self.kind
