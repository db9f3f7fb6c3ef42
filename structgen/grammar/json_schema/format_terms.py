"""Pieces that several formats have in common."""

from __future__ import annotations

from typing import Final

from structgen.grammar.nodes import CharClass, Grammar, choice, repeat, sequence

__all__ = [
    "ALPHA",
    "ALPHANUMERIC",
    "DIGITS",
    "HEX",
    "IPV4",
    "IPV6",
    "characters",
    "escapable",
    "escaped",
    "optional",
    "padded",
]


def characters(*ranges: str) -> CharClass:
    """One character out of single characters and ranges such as ``"a-z"``."""
    pairs = [(r[0], r[2]) if len(r) == 3 and r[1] == "-" else (r, r) for r in ranges]
    return CharClass([(ord(low), ord(high)) for low, high in pairs])


def escaped(term: CharClass) -> Grammar:
    r"""The escapes ``\uXXXX`` of the characters of a class, all below U+10000."""
    found: dict[int, list[int]] = {}
    for low, high in term.ranges:
        for code in range(low, high + 1):
            found.setdefault(code >> 4, []).append(code & 15)
    forms = [
        sequence("\\u", *(_hex([front >> shift & 15]) for shift in (8, 4, 0)), _hex(last))
        for front, last in found.items()
    ]
    return choice(*forms)


def escapable(term: CharClass) -> Grammar:
    """The characters of a class as they stand, or as escapes of JSON."""
    return choice(term, escaped(term))


def _hex(digits: list[int]) -> CharClass:
    return CharClass([(ord(case), ord(case)) for digit in digits for case in {f"{digit:x}", f"{digit:X}"}])


def optional(term: Grammar | str) -> Grammar:
    """``term`` or nothing."""
    return repeat(term, 0, 1)


def padded(first: int, last: int) -> Grammar:
    """The numbers from ``first`` to ``last``, both below 100, in two digits.

    >>> str(padded(8, 12))
    '"0" [89] | "1" [0-2]'
    """
    tens = [
        sequence(str(ten), characters(f"{max(first - 10 * ten, 0)}-{min(last - 10 * ten, 9)}"))
        for ten in range(first // 10, last // 10 + 1)
    ]
    return choice(*tens)


ALPHA: Final = characters("a-z", "A-Z")
ALPHANUMERIC: Final = characters("a-z", "A-Z", "0-9")
DIGITS: Final = repeat(characters("0-9"), 1)
HEX: Final = characters("0-9", "a-f", "A-F")


def _ipv4() -> Grammar:
    """Four decimal numbers up to 255 without leading zeros."""
    digit = characters("0-9")
    octet = choice(
        digit,
        sequence(characters("1-9"), digit),
        sequence("1", digit, digit),
        sequence("2", characters("0-4"), digit),
        sequence("25", characters("0-5")),
    )
    return sequence(octet, repeat(sequence(".", octet), 3, 3))


IPV4: Final = _ipv4()


def _ipv6() -> Grammar:
    """``IPv6address`` of RFC 3986: eight groups, one run of zero groups may be left out, the end may be IPv4."""
    group = repeat(HEX, 1, 4)
    last = choice(sequence(group, ":", group), IPV4)
    leading = sequence(group, ":")

    def before(most: int) -> Grammar:
        return optional(sequence(repeat(leading, 0, most), group)) if most else optional(group)

    forms = [sequence(repeat(leading, 6, 6), last), sequence("::", repeat(leading, 5, 5), last)]
    forms += [sequence(before(6 - n - 1), "::", repeat(leading, n - 1, n - 1), last) for n in range(5, 0, -1)]
    forms += [sequence(before(5), "::", group), sequence(before(6), "::")]
    return choice(*forms)


IPV6: Final = _ipv6()
