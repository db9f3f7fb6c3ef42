"""Host names (RFC 1034, 1123 and 5890) and mail addresses (RFC 5321 and 6531)."""

from __future__ import annotations

from functools import cache
from typing import Final

from structgen.grammar.json_schema.format_idn import a_label, judged_names, mail_domain
from structgen.grammar.json_schema.format_terms import ALPHA, ALPHANUMERIC, IPV4, IPV6, characters, optional
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    ByteClass,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Repeat,
    Shared,
    choice,
    repeat,
    sequence,
)

__all__ = ["any_email", "email", "hostname", "hostname_string", "idn_email", "plain_hostname"]

_BEYOND_ASCII: Final = (0x80, 0x10FFFF)


@cache
def plain_hostname() -> Grammar:
    """Labels of letters, digits and inner hyphens, of at most 63 characters, 253 in all."""
    inner = characters("a-z", "A-Z", "0-9", "-")
    label = sequence(ALPHANUMERIC, optional(sequence(repeat(inner, 0, 61), ALPHANUMERIC)))
    return Intersection((sequence(label, repeat(sequence(".", label))), Repeat(ANY_CHAR, 1, 253)))


@cache
def hostname() -> Grammar:
    """The same without labels that begin with ``xn--``.

    Whether those are valid depends on what they decode to, which is beyond a finite automaton.
    """
    anything = repeat(ANY_CHAR)
    encoded = sequence(characters("x", "X"), characters("n", "N"), "--", anything)
    return Intersection((plain_hostname(), Complement(sequence(optional(sequence(anything, ".")), encoded))))


@cache
def hostname_string() -> Grammar:
    """The JSON strings of host names, with A-labels among the first three labels."""
    left_to_right = judged_names(EMPTY, ALPHANUMERIC, lambda end: a_label(end, "a-label"))
    bidi = judged_names(EMPTY, ALPHA, lambda end: a_label(end, "bidi"))
    return Shared(choice(JsonString(hostname()), sequence('"', choice(left_to_right, bidi))))


@cache
def email() -> Grammar:
    """RFC 5321 ``Mailbox``, with the lengths of its section 4.5.3.1; no general address literals."""
    return _mailbox((), choice(plain_hostname(), _bracketed(choice(IPV4, sequence("IPv6:", IPV6)))))


@cache
def any_email() -> Grammar:
    """The same with every address literal, those of a form that is registered nowhere too."""
    return _mailbox((), choice(plain_hostname(), _bracketed(repeat(CharClass([(33, 90), (94, 126)]), 1))))


@cache
def idn_email() -> Grammar:
    """RFC 6531 ``Mailbox``: the same with characters beyond ASCII; lengths count octets of UTF-8."""
    domain = choice(plain_hostname(), Intersection((mail_domain(), _octets(253))))
    return _mailbox((_BEYOND_ASCII,), choice(domain, _bracketed(choice(IPV4, sequence("IPv6:", IPV6)))))


def _bracketed(address: Grammar) -> Grammar:
    return sequence("[", address, "]")


def _mailbox(more: tuple[tuple[int, int], ...], domain: Grammar) -> Grammar:
    atext = CharClass([*characters("a-z", "A-Z", "0-9", *"!#$%&'*+-/=?^_`{|}~").ranges, *more])
    dotted = sequence(repeat(atext, 1), repeat(sequence(".", repeat(atext, 1))))
    quoted_text = CharClass([(32, 33), (35, 91), (93, 126), *more])
    quoted = sequence('"', repeat(choice(quoted_text, sequence("\\", CharClass([(32, 126)])))), '"')
    local = Intersection((choice(dotted, quoted), _octets(64)))
    return sequence(local, "@", domain)


def _octets(most: int) -> Grammar:
    return Repeat(ByteClass([(0, 255)]), 1, most)
