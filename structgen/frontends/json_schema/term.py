"""Small regular terms: characters, digits, simplified sequences and choices; and membership of strings.

``belongs`` and ``matching_strings`` decide whether strings are in the language of a regular term: names against
patterns, constants against patterns and formats.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence as Items
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from structgen.errors import GrammarError
from structgen.frontends.disjointness import fixed_start
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    ByteClass,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Repeat,
    Sequence,
    Shared,
    choice,
    choice_of,
    repeat,
    sequence,
    sequence_of,
)
from structgen.grammar.visitor import trampoline
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.location import Location

__all__ = [
    "ALPHA",
    "ALPHANUMERIC",
    "ANY_STRING",
    "DIGIT",
    "DIGITS",
    "HEX",
    "NONZERO_DIGIT",
    "LanguageIndex",
    "alternatives",
    "belongs",
    "chain",
    "characters",
    "digits",
    "distinct",
    "followed",
    "matching_strings",
    "optional",
    "padded",
    "quoted",
    "tail_of",
    "united",
]

T = TypeVar("T")


def united(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    """The items of both, each object once."""
    if not a or not b or a is b:
        return a or b
    if len(a) == 1 == len(b):
        return a if a[0] is b[0] else a + b
    if len(b) == 1:
        for item in a:
            if item is b[0]:
                return a
        return a + b
    present = set(map(id, a))
    return a + tuple([item for item in b if id(item) not in present])


def characters(*ranges: str) -> CharClass:
    """One character of single characters and ranges such as ``"a-z"``."""
    pairs = [(r[0], r[2]) if len(r) == 3 and r[1] == "-" else (r, r) for r in ranges]
    return CharClass([(ord(low), ord(high)) for low, high in pairs])


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


_TEXT_COST: Final = 3
_BYTES_A_STEP: Final = 8
"""The steps to begin with a text: about their time in microseconds."""
_BITS_A_STEP: Final = 64
"""Positions of a text that are looked through in one step."""
_Ends: TypeAlias = Generator[object, int, int]


_MEMBERSHIP_BYTES: Final = 512
_MAX_CACHED_CHARACTERS: Final = 256
_memberships: Final[ContentCache[tuple[bool, int]]] = ContentCache(TERMS)
"""Whether texts are in languages, with the steps that this takes; looked up far more often than computed."""


def belongs(text: str, language: Grammar, count: Callable[[int], None] = lambda _: None) -> bool:
    """Whether ``text`` is in the language of a regular term; ``count`` receives the steps, and may raise an error.

    Complexity: at most O(nodes * len(text) ** 2), usually O(nodes * len(text)).

    >>> from structgen.grammar.nodes import ANY_CHAR, Repeat, literal
    >>> belongs("\N{EURO SIGN}x", literal("\N{EURO SIGN}") + Repeat(ANY_CHAR, 1, 2))
    True
    """
    key = text, language.digest
    cached = _memberships.get(key)
    if cached is not None:
        count(cached[1])  # the same steps, whatever was cached
        return cached[0]
    data = text.encode("utf-8", "surrogatepass")
    matched = _Text(data, count)
    is_member = bool(trampoline(_ends(language, 1, matched)) >> len(data) & 1)
    if len(text) <= _MAX_CACHED_CHARACTERS:
        _memberships.put(key, (is_member, matched.steps), _MEMBERSHIP_BYTES + 4 * len(text))
    return is_member


def matching_strings(
    texts: frozenset[str], language: Grammar, count: Callable[[int], None] = lambda _: None
) -> frozenset[str]:
    """The ``texts`` in the language of a regular term; ``count`` as in ``belongs``."""
    if isinstance(language, Literal):
        return texts & {language.data.decode("utf-8", "surrogatepass")}
    return frozenset(text for text in texts if belongs(text, language, count))


class LanguageIndex:
    """Several languages, to find those that contain a text; by the literals that their strings begin with.

    >>> from structgen.grammar.nodes import ANY_CHAR, Repeat, literal
    >>> index = LanguageIndex([literal(start) + Repeat(ANY_CHAR) for start in ("a_", "b_", "a")])
    >>> index.containing("a_1", lambda steps: None)
    [0, 2]
    """

    def __init__(self, languages: Items[Grammar]) -> None:
        self._languages = languages
        self._by_start: dict[bytes, list[int]] = {}
        for index, language in enumerate(languages):
            self._by_start.setdefault(fixed_start(language), []).append(index)
        self._lengths = sorted(set(map(len, self._by_start)))

    def containing(self, text: str, count: Callable[[int], None]) -> list[int]:
        """The indices of the languages with ``text``; ``count`` as in ``belongs``.

        Complexity: that of ``belongs`` for each language whose strings may begin like ``text``.
        """
        data = text.encode("utf-8", "surrogatepass")
        count(1 + len(self._lengths) // 4)
        lengths = (length for length in self._lengths if length <= len(data))
        candidates = [index for length in lengths for index in self._by_start.get(data[:length], ())]
        return [index for index in sorted(candidates) if belongs(text, self._languages[index], count)]


class _Text:
    """The bytes to match, where their characters start, and the steps that were taken."""

    def __init__(self, data: bytes, count: Callable[[int], None]) -> None:
        self.data = data
        self.steps = 0
        self._count = count
        if data.isascii():
            self.starts = (1 << len(data) + 1) - 1
            self.characters = {offset: (byte, offset + 1) for offset, byte in enumerate(data)}
        else:
            self.starts = sum(1 << i for i, byte in enumerate(data) if byte & 0xC0 != 0x80) | 1 << len(data)
            self.characters = _code_points(data)
        self.step(_TEXT_COST + len(data) // _BYTES_A_STEP)

    def step(self, taken: int) -> None:
        """Count steps."""
        self.steps += taken
        self._count(taken)


def _code_points(data: bytes) -> dict[int, tuple[int, int]]:
    """For the offset of each character its code point and the offset of the next."""
    points: dict[int, tuple[int, int]] = {}
    offset = 0
    for character in data.decode("utf-8", "surrogatepass"):
        end = offset + len(character.encode("utf-8", "surrogatepass"))
        points[offset] = ord(character), end
        offset = end
    return points


def _ends(term: Grammar, starts: int, text: _Text) -> _Ends:
    """Yield subproblems to the trampoline; return where matches that start in ``starts`` can end."""
    if not starts:
        return 0
    text.step(1 + starts.bit_count() + starts.bit_length() // _BITS_A_STEP)
    match term:
        case Literal(data=data):
            return sum(1 << i + len(data) for i in _bits(starts) if text.data.startswith(data, i))
        case CharClass(ranges=ranges):
            return sum(1 << end for i in _bits(starts) for end in _character_end(text, i, ranges))
        case ByteClass(ranges=ranges):
            return sum(1 << i + 1 for i in _bits(starts) if i < len(text.data) and _within(text.data[i], ranges))
        case Sequence(items=items):
            for item in items:
                starts = yield _ends(item, starts, text)
            return starts
        case Choice(items=items):
            result = 0
            for item in items:
                result |= yield _ends(item, starts, text)
            return result
        case Repeat():
            return (yield _repeated(term, starts, text))
        case Shared(item=item):
            return (yield _ends(item, starts, text))
        case Intersection() | Complement():
            return (yield _combined(term, starts, text))
    raise TypeError(f"{type(term).__name__} is not a regular term over text")


def _repeated(term: Repeat, starts: int, text: _Text) -> _Ends:
    for _ in range(min(term.min, len(text.data) + 1)):  # more rounds than bytes have no effect
        starts = yield _ends(term.item, starts, text)
    reached, fresh = starts, starts
    rounds = 0
    while fresh and (term.max is None or rounds < term.max - term.min):
        fresh = (yield _ends(term.item, fresh, text)) & ~reached
        reached |= fresh
        rounds += 1
    return reached


def _combined(term: Intersection | Complement, starts: int, text: _Text) -> _Ends:
    result = 0
    for start in _bits(starts & text.starts):
        later = text.starts >> start << start
        if isinstance(term, Complement):
            result |= later & ~(yield _ends(term.item, 1 << start, text))
            continue
        common = later
        for item in term.items:
            common &= yield _ends(item, 1 << start, text)
        result |= common
    return result


def _bits(positions: int) -> list[int]:
    if positions & (positions - 1) == 0:
        return [positions.bit_length() - 1] if positions else []
    return [i for i in range(positions.bit_length()) if positions >> i & 1]


def _character_end(text: _Text, offset: int, ranges: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    point, end = text.characters.get(offset, (-1, -1))
    return (end,) if _within(point, ranges) else ()


def _within(value: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= value <= high for low, high in ranges)


DIGIT: Final = ByteClass([(0x30, 0x39)])
NONZERO_DIGIT: Final = ByteClass([(0x31, 0x39)])


@lru_cache(maxsize=1 << 10)
def digits(mask: int) -> Grammar:
    """One of the digits ``d`` with bit ``1 << d`` in ``mask``; the same object for the same digits.

    >>> str(digits(0b1000000111))
    'b[0-29]'
    """
    return ByteClass([(0x30 + digit, 0x30 + digit) for digit in range(10) if mask >> digit & 1])


def alternatives(*terms: Grammar) -> Grammar:
    """The choice of the non-empty terms, each object once."""
    if len(terms) == 2:
        first, second = terms
        if first is EMPTY or second is EMPTY or first is second:
            return second if first is EMPTY else first
        return choice_of(terms)
    retained = tuple({id(term): term for term in terms if term is not EMPTY}.values())
    return retained[0] if len(retained) == 1 else choice_of(retained) if retained else EMPTY


def chain(*terms: Grammar) -> Grammar:
    """The sequence of the terms without empty strings; ``EMPTY`` if one of the terms is ``EMPTY``."""
    has_empty_strings = False
    for term in terms:
        if term is EMPTY:
            return EMPTY
        if term is EPSILON:
            has_empty_strings = True
    if has_empty_strings:
        terms = tuple([term for term in terms if term is not EPSILON])
    return terms[0] if len(terms) == 1 else sequence_of(terms) if terms else EPSILON


def followed(
    steps: Iterable[tuple[int, T]], tails: Mapping[T, Grammar | None], terms: Mapping[int, Grammar] | Items[Grammar]
) -> list[Grammar]:
    """Items or members, each with what may follow it; without those after which there is no way to the end.

    Args:
        steps: the indices of the terms, each with the state after it.
        tails: what may follow, by state; ``None``: the text cannot be completed.
        terms: the items or members.
    """
    result: list[Grammar] = []
    for index, after in steps:
        tail = tails[after]
        if tail is not None:
            result.append(terms[index] if tail is EPSILON else sequence_of((terms[index], tail)))
    return result


def tail_of(comma: Grammar, loop: Grammar, rest: Grammar, *, can_end: bool) -> Grammar | None:
    """What may follow an item or member: any number of ``loop``, then ``rest`` or the end; ``None`` if neither can."""
    if rest is EMPTY and not can_end:
        return None
    end: Grammar = EPSILON
    if rest is not EMPTY:
        end = sequence_of((comma, rest))
        if can_end:
            end = choice_of((EPSILON, end))
    return end if loop is EMPTY else chain(Repeat(sequence_of((comma, loop))), end)


def distinct(term: Grammar, *, is_spare: bool = False, is_endless: bool = False) -> Grammar:
    """The arrays of ``term`` without equal items, or its objects without repeated names.

    ``is_spare``: at most one item, or one undeclared name, is required.  ``is_endless``: required items or names never
    run out.  Both make masks cheaper.
    """
    return term if term is EMPTY else Distinct(term, is_spare, is_endless)


ANY_STRING: Final = Shared(JsonString(Repeat(ANY_CHAR)))


def quoted(text: str, location: Location, *steps: str | int) -> bytes:
    """A JSON string literal as ``json.dumps(text, ensure_ascii=False)`` writes it, in UTF-8.

    Raises:
        GrammarError: ``text`` has a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            location.subject(*steps),
            f"lone surrogate {error.object[error.start]!r} cannot be written in UTF-8",
            remedy="write the character itself, or a surrogate pair",
        ) from None
