"""``regex``: the regular expressions of ECMA-262 with the flag ``u``, as a context-free grammar.

The grammar spells the text between the quotes of a JSON string, because ``JsonString`` only takes regular terms.
"""

from __future__ import annotations

from functools import cache
from string import ascii_lowercase
from typing import Final

from structgen.frontends.json_schema.term import ALPHA, HEX, alternatives, chain, characters, optional
from structgen.grammar.nodes import (
    EPSILON,
    MAX_CODE_POINT,
    ByteClass,
    CharClass,
    Choice,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    choice,
    repeat,
    sequence,
)

__all__ = ["regex_language", "regex_string", "spelled"]

_SHORT: Final = {
    0x22: b'\\"',
    0x5C: b"\\\\",
    0x2F: b"\\/",
    0x08: b"\\b",
    0x0C: b"\\f",
    0x0A: b"\\n",
    0x0D: b"\\r",
    0x09: b"\\t",
}
_RAW: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
_ESCAPE: Final = Literal(b"\\u")
_FEW: Final = 8
_Ranges = tuple[tuple[int, int], ...]


def spelled(term: Grammar) -> Grammar:
    """The spellings of the strings of ``term``, which has classes, literals, sequences, choices and repeats.

    Recursive, because the nesting of ``term`` is bounded by the code that made it.  References are not changed.
    """
    match term:
        case CharClass(ranges=ranges):
            return _characters(ranges)
        case Literal(data=data):
            return chain(*(_characters(((ord(c), ord(c)),)) for c in data.decode()))
        case Sequence(items=items):
            return Sequence([spelled(item) for item in items])
        case Choice(items=items):
            return _choice(items)
        case Repeat(item=item, min=least, max=most):
            return Repeat(spelled(item), least, most)
        case Reference():
            return term
    raise TypeError(f"{type(term).__name__} has no spelling")


def _choice(items: tuple[Grammar, ...]) -> Grammar:
    r"""A choice of alternatives that begin with different ASCII characters, which share the prefix of their escapes.

    Otherwise ``\u00`` would start many alternatives in every state.
    """
    begun: dict[int, list[Grammar]] = {}
    others = []
    for item in items:
        parts = item.items if isinstance(item, Sequence) else (item,)
        first = parts[0] if parts else None
        if isinstance(first, Literal) and first.data and first.data[0] < 0x80:
            rest = Literal(first.data[1:]) if len(first.data) > 1 else EPSILON
            begun.setdefault(first.data[0], []).append(chain(rest, *parts[1:]))
        else:
            others.append(spelled(item))
    if sum(map(len, begun.values())) < _FEW:
        return Choice([spelled(item) for item in items])
    raw, escaped = [], []
    for code, rests in begun.items():
        rest = spelled(alternatives(*rests))
        if _common(_RAW, code, code):
            raw.append(chain(Literal(bytes([code])), rest))
        if code in _SHORT:
            raw.append(chain(Literal(_SHORT[code]), rest))
        escaped.append(chain(_hexadecimal(code, code, 2), rest))
    return Choice([*others, *raw, chain(Literal(b"\\u00"), Choice(escaped))])


@cache
def _characters(ranges: _Ranges) -> Grammar:
    """One character of a class."""
    raw = CharClass([pair for low, high in _RAW for pair in _common(ranges, low, high)])
    short = [Literal(text) for code, text in _SHORT.items() if _common(ranges, code, code)]
    basic = [_hexadecimal(low, high, 4) for low, high in _common(ranges, 0, 0xFFFF)]
    pairs = [_surrogates(low, high) for low, high in _common(ranges, 0x10000, 0x10FFFF)]
    escaped = chain(_ESCAPE, alternatives(*basic)) if basic else Choice(())
    return alternatives(*([raw] if raw.ranges else []), *short, escaped, *pairs)


def _common(ranges: _Ranges, low: int, high: int) -> list[tuple[int, int]]:
    return [(max(a, low), min(b, high)) for a, b in ranges if a <= high and b >= low]


def _surrogates(low: int, high: int) -> Grammar:
    """The surrogate pairs of characters beyond the basic plane."""
    first, last = divmod(low - 0x10000, 0x400), divmod(high - 0x10000, 0x400)
    if first[0] == last[0]:
        return _pair(first[0], first[0], first[1], last[1])
    return alternatives(
        _pair(first[0], first[0], first[1], 0x3FF),
        _pair(first[0] + 1, last[0] - 1, 0, 0x3FF),
        _pair(last[0], last[0], 0, last[1]),
    )


def _pair(lead: int, last_lead: int, trail: int, last_trail: int) -> Grammar:
    if lead > last_lead:
        return Choice(())
    leads, trails = (
        _hexadecimal(0xD800 + lead, 0xD800 + last_lead, 4),
        _hexadecimal(0xDC00 + trail, 0xDC00 + last_trail, 4),
    )
    return chain(_ESCAPE, leads, _ESCAPE, trails)


def _hexadecimal(low: int, high: int, digits: int) -> Grammar:
    """The numbers from ``low`` to ``high`` in exactly ``digits`` hexadecimal digits, in either case."""
    if digits == 1:
        return _digits(low, high)
    unit = 16 ** (digits - 1)
    first, last = low // unit, high // unit
    if first == last:
        return chain(_digits(first, first), _hexadecimal(low % unit, high % unit, digits - 1))
    parts = []
    if low % unit:
        parts.append(chain(_digits(first, first), _hexadecimal(low % unit, unit - 1, digits - 1)))
        first += 1
    end = last if high % unit == unit - 1 else last - 1
    if first <= end:
        parts.append(chain(_digits(first, end), Repeat(_digits(0, 15), digits - 1, digits - 1)))
    if end < last:
        parts.append(chain(_digits(last, last), _hexadecimal(0, high % unit, digits - 1)))
    return alternatives(*parts)


@cache
def _digits(low: int, high: int) -> Grammar:
    texts = "0123456789abcdef"[low : high + 1]
    return ByteClass([(ord(digit), ord(digit)) for text in texts for digit in {text, text.upper()}])


_SYNTAX: Final = r"^$\.*+?()[]{}|"
_DIGIT: Final = characters("0-9")
_HEXADECIMAL: Final = "0123456789abcdef"
_MAX_GROUPS: Final = 9
_DEPTH: Final = 3
_ASSERTIONS: Final = ("(?=", "(?!", "(?<=", "(?<!")
_GROUPS: Final = ("(", "(?:")
_CATEGORIES: Final = """
L Lu Ll Lt LC Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn
"""
_BINARY: Final = "Alphabetic ASCII Any Assigned Emoji ID_Start ID_Continue Lowercase Uppercase White_Space XID_Start"
_SCRIPTS: Final = "Latin Greek Cyrillic Arabic Hebrew Han Hiragana Katakana Hangul Thai Devanagari Common Inherited"


@cache
def regex_string() -> Grammar:
    """The JSON strings that hold a regular expression.

    A rule includes its end, a parenthesis or the quote, but not its start, so tokens are only split where a group ends.
    """
    quantifier = spelled(_quantifier())  # made once: the rules share them
    simple = choice(sequence(spelled(_atom()), optional(quantifier)), spelled(_assertion()))
    rules = {}
    for count in range(_MAX_GROUPS + 1):
        backward = [spelled(sequence("\\", characters(f"1-{count}")))] if count else []
        # A digit after \1 would change the number, so \1 is in a group or before a quantifier.
        alone = [sequence(_text("(?:"), b, _text(")"), optional(quantifier)) for b in backward]
        flat = _flat(str(count), [simple, *alone, *(sequence(b, quantifier) for b in backward)], quantifier)
        terms = _terms(str(count), flat, quantifier)
        rules[f"group {count}"] = sequence(terms, _text(")"))
        rules[f"top {count}"] = _top(count, flat, terms, quantifier)
    for letter in ascii_lowercase:
        named = sequence(_text(f"\\k<{letter}>"), optional(quantifier))
        terms = _terms(letter, _flat(letter, [simple, named], quantifier), quantifier)
        rules[f"group {letter}"] = sequence(terms, _text(")"))
        rules[f"rest {letter}"] = sequence(terms, '"')
    return Shared(Rules(rules, sequence('"', Reference("top 0"))))


@cache
def regex_language() -> Grammar:
    """The texts of regular expressions with groups nested at most three deep, without names and back references."""
    quantified = optional(_quantifier())
    simple = choice(sequence(_atom(), quantified), _assertion())
    pattern = repeat(choice(simple, "|"))
    for _ in range(_DEPTH):
        group = sequence(choice(*_GROUPS), pattern, ")", quantified)
        pattern = repeat(choice(simple, "|", group, sequence(choice(*_ASSERTIONS), pattern, ")")))
    return pattern


def _atom() -> Grammar:
    """A term that is not a group and may be repeated."""
    character, classes = _escapes()
    return choice(_but(_SYNTAX), ".", sequence("\\", choice(character, classes)), _class())


def _assertion() -> Grammar:
    return choice(characters("^", "$"), sequence("\\", characters("b", "B")))


def _text(*texts: str) -> Grammar:
    """One of some texts, as spelled in a JSON string."""
    return spelled(choice(*texts))


def _flat(name: str, terms: list[Grammar], quantifier: Grammar) -> Grammar:
    """One of ``terms``, ``|``, or a non-capturing group."""
    inner = Reference(f"group {name}")
    group = sequence(_text("(?:"), inner, optional(quantifier))
    return choice(*terms, _text("|"), group, sequence(_text(*_ASSERTIONS), inner))


def _terms(name: str, flat: Grammar, quantifier: Grammar) -> Grammar:
    return repeat(choice(flat, sequence(_text("("), Reference(f"group {name}"), optional(quantifier))))


def _top(count: int, flat: Grammar, terms: Grammar, quantifier: Grammar) -> Grammar:
    """The rest of the expression after ``count`` top-level groups."""
    group = sequence(Reference(f"group {count}"), optional(quantifier))
    start = characters("a-z", "A-Z", "_", "$")
    name = spelled(sequence(start, repeat(characters("a-z", "A-Z", "0-9", "_", "$")), ">"))
    names = [sequence(_text(f"{letter}>"), group, Reference(f"rest {letter}")) for letter in ascii_lowercase]
    return sequence(
        repeat(flat),
        choice(
            '"',
            sequence(_text("("), group, Reference(f"top {min(count + 1, _MAX_GROUPS)}")),
            sequence(_text("(?<"), choice(*names, sequence(name, group, terms, '"'))),
        ),
    )


def _but(excluded: str) -> CharClass:
    """Any character except those of ``excluded``."""
    ranges, start = [], 0
    for code in sorted(map(ord, excluded)):
        if start < code:
            ranges.append((start, code - 1))
        start = code + 1
    return CharClass([*ranges, (start, MAX_CODE_POINT)])


def _any_case(digits: str) -> CharClass:
    return CharClass([(ord(case), ord(case)) for digit in digits for case in (digit, digit.upper())])


def _four(fixed: str, digits: str) -> Grammar:
    """``uXXXX``: the digits of ``fixed``, one of ``digits``, then any digits; not a surrogate."""
    plain = digits if fixed else digits.replace("d", "")
    rest = 3 - len(fixed)
    forms = [sequence(_any_case(plain), repeat(HEX, rest, rest))] if plain else []
    if not fixed and "d" in digits:
        forms.append(sequence(_any_case("d"), characters("0-7"), repeat(HEX, 2, 2)))
    return sequence("u", *map(_any_case, fixed), choice(*forms))


def _escapes() -> tuple[Grammar, Grammar]:
    """What may follow a backslash: characters, and classes of them."""
    up_to_five = sequence(optional(HEX), repeat(HEX, 1, 4))
    code_point = sequence("u{", choice(up_to_five, sequence("10", repeat(HEX, 4, 4))), "}")
    lead, trail = sequence(_any_case("d"), _any_case("89ab")), sequence(_any_case("d"), _any_case("cdef"))
    character = choice(
        characters(*"fnrtv"),
        sequence("c", ALPHA),
        sequence("x", HEX, HEX),
        _four("", _HEXADECIMAL),
        sequence("u", lead, HEX, HEX, "\\u", trail, HEX, HEX),
        code_point,
        characters(*_SYNTAX, "/"),
    )
    categories, binary, scripts = (choice(*names.split()) for names in (_CATEGORIES, _BINARY, _SCRIPTS))
    names = choice(
        categories,
        binary,
        sequence(choice("Script=", "sc=", "Script_Extensions=", "scx="), scripts),
        sequence(choice("General_Category=", "gc="), categories),
    )
    return character, choice(characters(*"dDsSwW"), sequence(characters("p", "P"), "{", names, "}"))


def _class() -> Grammar:
    """``[...]``: items, with a literal hyphen first, last or after a range."""
    character, classes = _escapes()
    single = choice(_but("\\]-"), sequence("\\", choice(characters("b", "-"), character, classes)))
    items = repeat(choice(single, sequence(choice(_ascii_range(), _escaped_range()), optional("-"))))
    return sequence("[", optional("^"), optional("-"), items, optional("-"), "]")


def _ascii_range() -> Grammar:
    r"""``a-z``: characters of ASCII in order, none of them ``\``, ``]`` or ``-``."""
    plain = [code for code in range(0x20, 0x7F) if chr(code) not in "\\]-"]
    return choice(
        *(sequence(chr(low), "-", CharClass([(code, code) for code in plain if code >= low])) for low in plain)
    )


def _escaped_range() -> Grammar:
    r"""``\u4e00-\u9fa5``: the first two digits differ, or after ``00`` the third."""
    ranges = []
    for fixed in ("", *_HEXADECIMAL, "00"):
        digits = _HEXADECIMAL[:8] if fixed == "d" else _HEXADECIMAL
        for index, digit in enumerate(digits[:-1]):
            ranges.append(sequence("\\", _four(fixed, digit), "-\\", _four(fixed, digits[index + 1 :])))
    return choice(*ranges)


def _quantifier() -> Grammar:
    """``*``, ``+``, ``?``, ``{n}``, ``{n,}`` and ``{n,m}`` with ``n <= m``, also lazy."""
    bounds = [sequence(f"{low},", _at_least(low)) for low in range(100)]
    braces = sequence("{", choice(sequence(repeat(_DIGIT, 1, 4), optional(",")), *bounds), "}")
    return sequence(choice(characters(*"*+?"), braces), optional("?"))


def _at_least(low: int) -> Grammar:
    """The numbers from ``low``, below 100, to 9,999."""
    tens, ones = divmod(low, 10)
    forms = [sequence(characters("1-9"), repeat(_DIGIT, 2, 3))]
    if tens < 9:
        forms.append(sequence(characters(f"{tens + 1}-9"), _DIGIT))
    forms.append(sequence(str(tens) if tens else "", characters(f"{ones}-9")))
    return choice(*forms)
