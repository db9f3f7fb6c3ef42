"""``regex``: the regular expressions of ECMA-262 with the flag ``u``, as a context-free grammar.

The grammar spells the text between the quotes of a JSON string, because ``JsonString`` only takes regular terms.
"""

from __future__ import annotations

from functools import cache
from string import ascii_lowercase
from typing import Final

from structgen.frontends.json_schema.json_string import RAW, SHORT_ESCAPES, clipped, hexadecimal, spelled_class
from structgen.frontends.json_schema.term import ALPHA, HEX, alternatives, chain, characters, optional
from structgen.grammar.nodes import (
    EPSILON,
    MAX_CODE_POINT,
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

_FEW: Final = 8
_characters: Final = cache(spelled_class)


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
        if clipped(RAW, code, code):
            raw.append(chain(Literal(bytes([code])), rest))
        if code in SHORT_ESCAPES:
            raw.append(chain(Literal(b"\\" + SHORT_ESCAPES[code].encode()), rest))
        escaped.append(chain(hexadecimal(code, code, 2), rest))
    return Choice([*others, *raw, chain(Literal(b"\\u00"), Choice(escaped))])


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
