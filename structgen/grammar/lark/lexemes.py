r"""Texts that end where they first can: rules that are ``lazy``, or have a ``stop`` or ``suffix``.

With B for the body of the rule and S for what ends it, both regular, and any+ for one or more characters, the texts are

* ``lazy``: those of B of which no proper beginning belongs to B, ``B & ~(B any+)``;
* ``suffix``: those of B S of which no proper beginning belongs to B S, ``B S & ~(B S any+)``;
* ``stop``: those of the second kind without the S at their end.

The third are a quotient of languages, which is no boolean term in general.  It is one where S has few texts: a text of
B may be followed by the text s, and then ends there, if no beginning of it belongs to B S, and none that goes on into s
does: one that ends within s begins its own ``s' = u t`` with a part ``u`` of the body and goes on with a proper
beginning ``t`` of s.
"""

from __future__ import annotations

from typing import Final

from structgen.grammar.algebra import either, joined
from structgen.grammar.nodes import (
    ANY_CHAR,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
    literal,
    postorder,
)

__all__ = ["before", "shortest", "with_suffix"]

_MORE: Final = Repeat(ANY_CHAR, 1, None)
_ANY: Final = Repeat(ANY_CHAR, 0, None)
_MOST_STOPS: Final = 256


def shortest(body: Grammar) -> Grammar:
    """Return the texts of a regular term of which no proper beginning belongs to it."""
    return Intersection((body, Complement(joined([body, _MORE]))))


def with_suffix(body: Grammar, suffix: Grammar, capture: str | None, suffix_capture: str | None) -> Grammar:
    """Return the texts of ``body`` up to the first place where ``suffix`` can end, that included.

    Captures name what comes before the suffix, and the suffix.
    """
    whole = joined([body, suffix])
    head = body if capture is None else Capture(capture, body)
    tail = suffix if suffix_capture is None else Capture(suffix_capture, suffix)
    return Intersection((joined([head, tail]), Complement(joined([whole, _MORE]))))


def before(body: Grammar, stop: Grammar) -> Grammar | None:
    """Return the texts of ``body`` that may stand before the first place where ``stop`` can be, without that.

    ``None``: the stop has too many texts.
    """
    single = _single_characters(stop)
    within = joined([body, stop, _ANY])
    if single:  # no text that ends within a single character is longer than the body
        return Intersection((body, Complement(within)))
    words = _words(stop)
    if words is None:
        return None
    ways: dict[tuple[str, ...], Grammar] = {}
    for word in words:
        begun = sorted({
            other[:-length]
            for other in words
            for length in range(1, len(word))
            if length < len(other) and other.endswith(word[:length])
        })  # fmt: skip
        if tuple(begun) not in ways:
            refused = [within, *(joined([body, literal(part)]) for part in begun)]
            ways[tuple(begun)] = Intersection((body, Complement(either(refused))))
    return either(ways.values())


def _single_characters(term: Grammar) -> bool:
    match term:
        case CharClass():
            return True
        case Literal():
            return len(term.data.decode("utf-8", "replace")) == 1
        case Choice():
            return (
                bool(term.items)
                and all(isinstance(item, (CharClass, Literal)) for item in term.items)
                and all(map(_single_characters, term.items))
            )
    return False


def _words(term: Grammar) -> list[str] | None:
    """The texts of a term without unbounded repetition, if they are few, and none is empty."""
    known: dict[int, frozenset[str] | None] = {}
    for node in postorder(term):
        parts = [known[id(child)] for child in node.children]
        known[id(node)] = _spelled(node, [part for part in parts if part is not None], all(map(_is_known, parts)))
    words = known[id(term)]
    return sorted(words) if words and "" not in words else None


def _is_known(words: frozenset[str] | None) -> bool:
    return words is not None


def _spelled(node: Grammar, parts: list[frozenset[str]], is_known: bool) -> frozenset[str] | None:
    words: frozenset[str] | None = None
    match node:
        case Literal():
            words = frozenset([node.data.decode("utf-8", "replace")])
        case CharClass() if sum(high - low + 1 for low, high in node.ranges) <= _MOST_STOPS:
            words = frozenset(chr(code) for low, high in node.ranges for code in range(low, high + 1))
        case Choice() if is_known:
            words = frozenset().union(*parts)
        case Sequence() if is_known:
            words = frozenset([""])
            for part in parts:
                if len(words) * len(part) > _MOST_STOPS:
                    return None
                words = frozenset(head + tail for head in words for tail in part)
        case Repeat(min=0, max=1) if is_known:
            words = parts[0] | {""}
    return words if words is not None and len(words) <= _MOST_STOPS else None
