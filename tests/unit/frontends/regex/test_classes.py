"""Classes of characters over all of Unicode, against ``re`` and ``unicodedata``."""

from __future__ import annotations

import re
import unicodedata
import warnings
from functools import cache

import pytest
from regex_reference import Universe

from structgen.frontends.regex import DialectName, regex
from structgen.frontends.regex.code_point import (
    CATEGORY_NAMES,
    category,
    complement,
    contains,
    difference,
    find_property,
    symmetric_difference,
    union,
)
from structgen.grammar.nodes import CharClass, Literal
from structgen.grammar.nodes.description import Described

SURROGATES = range(0xD800, 0xE000)


@cache
def all_characters() -> str:
    """Every character of Unicode, in order."""
    return "".join(chr(point) for point in range(0x110000) if point not in SURROGATES)


@cache
def cased_characters() -> str:
    return "".join(c for c in all_characters()[:0x20000] if c not in {c.lower(), c.upper(), c.casefold()} or cased(c))


def cased(character: str) -> bool:
    return len({character, character.lower(), character.upper(), character.casefold()}) > 1


def matched_by_re(pattern: str) -> list[tuple[int, int]]:
    """The ranges of characters that ``re`` matches, split at the surrogates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        flags, _, rest = pattern.partition(")") if pattern.startswith("(?") else ("", "", pattern)
        runs = re.compile(f"{flags})(?:{rest})+" if flags else f"(?:{rest})+")
    text = all_characters()
    halves = ((0, SURROGATES.start, 0), (SURROGATES.start, len(text), len(SURROGATES)))
    return [
        (found.start() + shift, found.end() - 1 + shift)
        for start, end, shift in halves
        for found in runs.finditer(text, start, end)
    ]


def ranges(pattern: str, flags: str = "") -> list[tuple[int, int]]:
    """The ranges of characters of a Python pattern that is one class."""
    described = regex(pattern, flags=flags)
    assert isinstance(described, Described)
    assert isinstance(described.item, CharClass)
    return list(described.item.ranges)


def members(pattern: str, dialect: DialectName = "python", flags: str = "") -> set[str]:
    """The characters of a pattern that is one class."""
    described = regex(pattern, dialect=dialect, flags=flags)
    assert isinstance(described, Described)
    term = described.item
    if isinstance(term, Literal):
        return {term.data.decode()}
    assert isinstance(term, CharClass)
    return {chr(point) for low, high in term.ranges for point in range(low, high + 1)}


CLASSES = [
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"[\wé]", r"[^\wé]", r"[\W\d]", "[a-zß]", "[^a-z]", "[Ā-Ȁ]"),
    *(r"[\U00010400-\U00010410]", r"[^\U00010428]", "[İ]", "[ı]", "[µ-ſ]", r"[\ud800-\udfffa]", "[ἀ-῿]", "[ﬅ]", "[^ﬅ]"),
    *("[Ა-Ჿ]", "[Ꭰ-Ᏽ]", "[ᏸ-ᏽ]", r"[\sK]", r"[\Wk]", "[^ſ]", "[ẞ]"),
]


@pytest.mark.parametrize("flags", ["", "a", "s", "i", "ai"])
def test_python_classes_hold_what_re_matches(flags: str) -> None:
    """Code point by code point over all of Unicode, each class of the Python dialect agrees with ``re``."""
    # CPython folds ranges above U+FFFF by Unicode even with the flag a.
    patterns = [pattern for pattern in CLASSES if not ("i" in flags and "a" in flags and "U0001" in pattern)]
    for pattern in patterns:
        inline = f"(?{flags})" if flags else ""
        if isinstance(regex(pattern, flags=flags).children[0], CharClass):
            assert ranges(pattern, flags) == matched_by_re(inline + pattern), pattern
        else:
            assert members(pattern, flags=flags) == set(re.findall(inline + pattern, all_characters())), pattern


def test_caseless_letters_are_those_of_re() -> None:
    """Every cased character, alone and in a class, matches the same characters as in ``re`` when case is ignored."""
    text = cased_characters()
    assert {"ſ", "K", "Å", "ı", "İ", "ß", "ẞ", "ς"} < set(text)
    for character in text:
        assert members(character, flags="i") == set(re.findall(character, text, re.IGNORECASE)), character


def test_caseless_ascii_letters() -> None:
    """With the flag a, only the 26 letters ignore case."""
    assert {"k", "K"} == members("k", flags="ia")
    assert {"ſ"} == members("ſ", flags="ia")
    assert {"é"} == members("é", flags="ia")


def test_simple_case_folding() -> None:
    """The ecma and rust dialects fold by CaseFolding.txt: dotted and dotless i fold to nothing else, ẞ folds to ß."""
    for dialect in ("ecma", "rust"):
        assert {"i", "I"} == members("i", dialect, "i")
        assert {"İ"} == members("İ", dialect, "i")
        assert {"s", "S", "ſ"} == members("s", dialect, "i")
        assert {"ß", "ẞ"} == members("ß", dialect, "i")
        assert {"σ", "ς", "Σ"} == members("Σ", dialect, "i")
        assert {"ᾀ", "ᾈ"} == members("ᾈ", dialect, "i")
        assert members(r"\w", dialect, "i") >= {"ſ", "K"}


def test_negation_comes_after_case() -> None:
    r"""``[^x]`` with case ignored excludes both cases; ``\P`` is negated first only in ecma."""
    universe = Universe(["xXaA"])
    for dialect in ("python", "ecma", "rust"):
        assert universe.members(regex("[^x]", dialect=dialect, flags="i")) == {"a", "A"}
    assert universe.members(regex(r"\P{Lu}", dialect="ecma", flags="i")) == {"x", "X", "a", "A"}
    assert universe.members(regex(r"\P{Lu}", dialect="rust", flags="i")) == set()


def test_general_categories() -> None:
    """Every name of a general category has the characters that ``unicodedata`` puts there."""
    wanted: dict[str, set[str]] = {"Cs": set()}
    for character in all_characters():
        wanted.setdefault(unicodedata.category(character), set()).add(character)
    for group in {name[0] for name in wanted}:
        wanted[group] = set().union(*(found for name, found in wanted.items() if name[0] == group))
    wanted["LC"] = wanted["Lu"] | wanted["Ll"] | wanted["Lt"]
    for short in set(CATEGORY_NAMES.values()):
        assert members(rf"\p{{{short}}}", "ecma") == wanted[short], short
    assert members(r"\P{L}", "ecma") == set(all_characters()) - wanted["L"]
    assert wanted["L"] | wanted["Nd"] == members(r"[\p{L}\p{Nd}]", "ecma")


@pytest.mark.parametrize("dialect", ["ecma", "rust"])
def test_names_of_general_categories(dialect: DialectName) -> None:
    """All names of a category, alone or with ``gc=``, mean the same in both dialects that have them."""
    for name, short in CATEGORY_NAMES.items():
        [wanted] = regex(rf"\p{{{short}}}", dialect="ecma").children
        assert regex(rf"\p{{{name}}}", dialect=dialect).children == (wanted,), name
        assert regex(rf"\p{{gc={name}}}", dialect=dialect).children == (wanted,), name
        assert regex(rf"[\p{{General_Category={name}}}]", dialect=dialect).children == (wanted,), name


def test_binary_properties() -> None:
    """The supported binary properties agree with those of ``str``."""
    everything = all_characters()
    assert set(everything) == members(r"\p{Any}", "ecma")
    assert {c for c in everything if c.isascii()} == members(r"\p{ASCII}", "ecma")
    assert {c for c in everything if c.islower()} == members(r"\p{Lowercase}", "ecma")
    assert {c for c in everything if c.isupper()} == members(r"\p{Upper}", "rust")
    assert {c for c in everything if c.isidentifier()} - {"_"} == members(r"\p{XID_Start}", "rust")
    assert {c for c in everything if ("a" + c).isidentifier()} == members(r"\p{XIDC}", "ecma")
    assert {c for c in everything if c.isspace()} - set("\x1c\x1d\x1e\x1f") == members(r"\p{White_Space}", "rust")
    assert {c for c in everything if unicodedata.category(c) != "Cn"} == members(r"\p{Assigned}", "rust")
    assert find_property("Script") is None


def test_shorthand_classes_of_the_other_dialects() -> None:
    """In ecma ``\\d`` and ``\\w`` are ASCII and ``\\s`` is its own set; in Rust they follow UTS 18."""
    assert set("0123456789") == members(r"\d", "ecma")
    assert set("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == members(r"\w", "ecma")
    spaces = {c for c in all_characters() if unicodedata.category(c) == "Zs"}
    assert spaces | set("\t\n\v\f\r\u2028\u2029\ufeff") == members(r"\s", "ecma")
    near = Universe("\n\r\v\x85\u2027\u2028\u2029\u202a")
    assert near.members(regex(".", dialect="ecma")) == set("\v\x85\u2027\u202a")
    assert near.members(regex(".", dialect="rust")) == near.texts - {"", "\n"}
    word = members(r"\w", "rust")
    assert set("aé_٣Ⓐ\u0345\u200d") < word
    assert not set("-²½\u2028") & word
    assert members(r"\d", "rust") == members(r"\p{Nd}", "rust")
    assert members(r"\s", "rust") == members(r"\p{White_Space}", "rust")


def test_no_class_holds_a_surrogate() -> None:
    """Surrogates are no characters: no class, dot or complement matches one."""
    for pattern in (".", r"\W", r"[\ud800-\udfff]", "[^a]", r"\ud800", "\udc00", "[\udc00]"):
        assert not any(
            low in SURROGATES or high in SURROGATES or low < SURROGATES.start < high
            for low, high in ranges(pattern, flags="s")
        )
    assert members("\ud800") == set()


def test_algebra_of_ranges() -> None:
    """Operations on ranges are those on the sets of code points."""
    left, right = ((0, 4), (8, 9), (20, 30)), ((3, 8), (25, 40))
    sets = [{p for low, high in ranges for p in range(low, high + 1)} for ranges in (left, right)]

    def expanded(ranges: tuple[tuple[int, int], ...]) -> set[int]:
        return {point for low, high in ranges for point in range(low, min(high, 100) + 1)}

    assert sets[0] | sets[1] == expanded(union(left, right))
    assert sets[0] - sets[1] == expanded(difference(left, right))
    assert sets[0] ^ sets[1] == expanded(symmetric_difference(left, right))
    assert set(range(101)) - sets[0] == expanded(complement(left))
    assert sets[0] == {point for point in range(50) if contains(left, point)}
    assert complement(complement(left)) == left
    assert category("Cs") == ((0xD800, 0xDFFF),)
