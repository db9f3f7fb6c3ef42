"""The grammar of arguments between tags, in each style."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from structgen.frontends.free_text import text_of
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.arguments import arguments_term, known_arguments
from structgen.frontends.json_schema.emit.arguments import NotationMarks, Scalars, refuse_name
from structgen.frontends.json_schema.excluded_texts import no_json, without_texts
from structgen.frontends.json_schema.source.json_value import ARRAY, OBJECT, STRING
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.term import chain
from structgen.frontends.xml_arguments.style import STYLES, TYPE_NAMES, Style, style_named
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    ByteClass,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    literal,
    sequence,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.policy import Whitespace

__all__ = ["Spacing", "known_xml_arguments", "xml_arguments", "xml_term"]


_ANY_TEXT: Final = Repeat(ANY_CHAR)
_LINE: Final = literal("\n")
_OPTIONAL_LINE: Final = Repeat(_LINE, 0, 1)
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


@dataclass(frozen=True, slots=True, eq=False)
class Spacing:
    """The white space of arguments; compared by identity, so that looking grammars up takes no time.

    Attributes:
        before, after: around each member.
        between: between members.
        end: after the last member.
        middle: after the name, before the mark of a value.
        value: before and after a value that is no string.
        text: the same for strings; None: as the style reads raw text.
    """

    before: Grammar = EPSILON
    after: Grammar = EPSILON
    between: Grammar = EPSILON
    end: Grammar = EPSILON
    middle: Grammar = EPSILON
    value: Grammar = EPSILON
    text: Grammar | None = None


_PARTS: Final = ("before", "end", "middle", "value")


@lru_cache(maxsize=64)
def _run(longest: int | None) -> Spacing:
    """Up to ``longest`` characters of white space between marks and around values that are no strings."""
    space = EPSILON if longest == 0 else Repeat(ByteClass([(9, 10), (13, 13), (32, 32)]), 0, longest)
    return Spacing(**dict.fromkeys(_PARTS, space))


@lru_cache(maxsize=64)
def _lines(indent: int | None) -> Spacing:
    """A line break, with ``indent`` also a space before it and spaces and tabs after it."""
    line: Grammar = _LINE
    if indent is not None:
        indentation = Repeat(ByteClass([(9, 9), (32, 32)]), 0, indent)
        line = sequence(Repeat(literal(" "), 0, 1), Repeat(sequence(_LINE, indentation), 0, 1))
    return Spacing(**dict.fromkeys(_PARTS, Repeat(line, 0, 1)))


def _spacing_of(policy: JsonPolicy) -> Spacing:
    """The white space between marks that goes with the one in JSON."""
    match policy.whitespace:
        case "compact":
            return Spacing()
        case "runs" | "any":
            return _run(policy.width if policy.whitespace == "runs" else None)
        case "single":
            return _lines(None)
    return _lines(policy.width)


def xml_arguments(  # noqa: PLR0913  what a schema leaves open, by name
    schema: object,
    style: str,
    *,
    any_order: bool = False,
    whitespace: Whitespace | int | None = None,
    policy: JsonPolicy | None = None,
    limits: Limits | None = None,
    excludes: Sequence[str] = (),
) -> Grammar:
    r"""The arguments that an object schema allows, written between tags.

    Args:
        schema: of the arguments, as for ``json_schema``; of other types than objects nothing is written.
        style: one of ``STYLES``.
        any_order: whether members may stand in any order, each required one once and each other one at most once.
        whitespace: white space between marks, and around values that are no strings: the maximum number of its
            characters, or the name of a choice of ``JsonPolicy``, which is then used inside JSON too; between marks
            ``"single"``, the default, is at most one line break, ``"compact"`` is none.
        policy: how JSON inside is written, and what the schema leaves open.
        limits: bounds on the schema.
        excludes: texts that occur in no name and no string, as these are spelled: between the marks of the style, and
            between the quotes of JSON inside.  None is empty.

    Raises:
        GrammarError: there is no such style, or the schema is malformed.
        UnsupportedFeature: the style cannot spell a name, a constant or what a keyword allows; the JSON Pointer says
            which.
        UnsatisfiableGrammar: no arguments are valid.
        LimitExceeded: the schema is too large.
        ValueError: ``whitespace`` is negative, ``"indented"``, or no choice of the policy; an excluded text is empty.

    Complexity: as ``json_schema``; equal schemas are looked up.

    >>> print(xml_arguments({"properties": {"a": {"const": 1}}, "required": ["a"]}, "minimax_xml", whitespace=0))
    "" ("<parameter name=\"" "a" "\"" (">" "1" "</parameter>") "")
    """
    chosen = policy or JsonPolicy()
    if any_order:
        chosen = replace(chosen, order="any")
    if isinstance(whitespace, str):
        chosen = replace(chosen, whitespace=whitespace)
    if whitespace is None or isinstance(whitespace, str):
        spacing = _spacing_of(chosen)
    elif isinstance(whitespace, int) and not isinstance(whitespace, bool) and whitespace >= 0:
        spacing = _run(whitespace)
    else:
        raise ValueError(f"xml_arguments: whitespace is a number of characters from 0 on; found {whitespace!r:.60}")
    if not excludes:
        return xml_term(schema, style, spacing, policy=chosen, limits=limits)
    if isinstance(excludes, str) or not all(isinstance(text, str) and text for text in excludes):
        raise ValueError(f"xml_arguments: excludes are texts that are not empty; found {excludes!r:.60}")
    spend(sum(map(len, excludes)), "excludes")
    notation = _notation(style, spacing, literal, tuple(excludes))
    term = arguments_term(schema, notation, policy=chosen, limits=limits)
    return without_texts(term, excludes, "arguments", "excludes")


def known_xml_arguments(
    schemas: list[dict[str, Any] | str], style: str, policy: JsonPolicy, limits: Limits
) -> list[Grammar | None]:
    """What ``xml_arguments`` returns for each of many schemas; ``None`` for those that are not simple.

    Schemas are ``dict`` or JSON text, and no text is longer than ``limits`` allow. There is nothing for a style that is
    not known.
    """
    if style not in STYLES:
        return [None] * len(schemas)
    return known_arguments(schemas, _notation(style, _spacing_of(policy), literal), policy, limits)


def xml_term(
    schema: object,
    style: str,
    spacing: Spacing,
    *,
    policy: JsonPolicy,
    limits: Limits | None = None,
    spell: Callable[[str], Grammar] = literal,
) -> Grammar:
    """The arguments in a style with the white space of ``spacing``; ``spell`` makes the terms of marks."""
    return arguments_term(schema, _notation(style, spacing, spell), policy=policy, limits=limits)


@lru_cache(maxsize=64)
def _notation(
    style: str, spacing: Spacing, spell: Callable[[str], Grammar], excludes: tuple[str, ...] = ()
) -> _XmlNotation:
    return _XmlNotation(style_named(style), spacing, spell, excludes)


class _XmlNotation:
    """The notation of a style; compared by identity.  With ``excludes``, all that is not JSON is marked."""

    def __init__(
        self, style: Style, spacing: Spacing, spell: Callable[[str], Grammar], excludes: tuple[str, ...]
    ) -> None:
        self.style = style
        self.spacing = spacing
        self._spell = spell
        self._excludes = excludes
        self._allowed = text_of(excludes)
        self.nests = style.nests
        self._texts = Complement(sequence(_ANY_TEXT, literal(style.stop), _ANY_TEXT))
        self.scalars = tuple(
            Scalars(types, _schema_of(types), partial(self._json, self._mark(types)))
            for types, _ in style.marks
            if types != STRING and not (self.nests and types & (ARRAY | OBJECT))
        )
        is_plain = not excludes and (spell is literal or not style.repeats_names)
        self.marks = self._marks() if is_plain else None

    def _marks(self) -> NotationMarks:
        """The notation for the native planner."""
        style, spacing, edge = self.style, self.spacing, self._edge()
        names = self.names(_ANY_TEXT, is_root=True)
        repeated = style.close.split("{}") if style.repeats_names else None
        opening, close = style.item or ("", "")
        terms = (
            chain(spacing.before, self.spell(style.open)),
            self.spell(style.name_end),
            spacing.after if repeated else chain(self.spell(style.close), spacing.after),
            spacing.between,
            spacing.end,
            names,
            chain(self._mark(STRING), edge),
            edge,
            chain(spacing.before, self.spell(opening)),
            self.spell(close),
        )
        written = [
            (types, _or_none(chain(self._mark(types), spacing.value)), _or_none(spacing.value))
            for types, _ in style.marks
            if types != STRING and not (style.nests and types & (ARRAY | OBJECT))
        ]
        return NotationMarks(
            tuple(map(_or_none, terms)),
            tuple(written),
            tuple(_or_none(self._mark(types)) for types in (ARRAY, OBJECT)) if style.nests else (),
            style.name_end,
            style.stop,
            (repeated[0], repeated[1]) if repeated else None,
            style.has_entities,
            strips=style.strips and spacing.text is None,
        )

    def _edge(self) -> Grammar:
        """What may stand at each end of a text that is listed."""
        around = self.spacing.text
        return around if around is not None else _OPTIONAL_LINE if self.style.strips else EPSILON

    def spell(self, mark: str) -> Grammar:
        """The term of a mark."""
        return no_json(self._spell(mark)) if self._excludes else self._spell(mark)

    def _restricted(self, written: Grammar) -> Grammar:
        """Names or strings, as they are written, without what is excluded."""
        return no_json(Intersection([written, self._allowed])) if self._excludes else written

    def syntax(self, json: Syntax, *, is_root: bool) -> Syntax:
        end = self.spacing.end
        between = self.spacing.between
        return replace(
            json,
            open_object=EPSILON, close_object=end, end_object=end, open_array=EPSILON, close_array=end, end_array=end,
            comma=between, colon=self.spell(self.style.name_end),
        )  # fmt: skip

    def key(self, name: str, location: Location, *, is_root: bool) -> Grammar:
        style = self.style
        shown = _with_entities(name) if style.has_entities else name
        ends_early = (shown + style.name_end).find(style.name_end) < len(shown)
        if not shown or ends_early or (style.repeats_names and shown.startswith("/")):
            refuse_name(
                location,
                name,
                f"the name {name!r:.60} cannot be written before {style.name_end!r}",
                remedy="rename it, or use a style that can write it",
            )
        if any(text in shown for text in self._excludes):
            return EMPTY
        written = literal(shown)
        return chain(self.spacing.before, self.spell(style.open), no_json(written) if self._excludes else written)

    def names(self, language: Grammar, *, is_root: bool) -> Grammar | None:
        style = self.style
        if style.repeats_names:
            return None
        written = Intersection(
            [language, _characters_without(style.name_end[0], "<", ">", *(_ENTITIES if style.has_entities else ()))]
        )
        if style.has_entities and (excluded := _excluded_names(language)) is not None:
            spelled = Choice([_characters_without(*_ENTITIES, most=1), *map(literal, _ENTITIES.values())])
            declared = [literal(_with_entities(name)) for name in excluded]
            written = Intersection([Repeat(spelled, 1, None), *map(Complement, declared)])
        return chain(self.spacing.before, self.spell(style.open), self._restricted(written))

    def member(self, value: Grammar, name: str | None) -> Grammar:
        return chain(value, self.spell(self.style.close.format(name)), self.spacing.after)

    def item(self, value: Grammar) -> Grammar:
        opening, close = self.style.item or ("", "")
        return chain(self.spacing.before, self.spell(opening), value, self.spell(close))

    def spells(self, text: str) -> bool:
        return self.style.stop not in text

    def string(self, language: Grammar | None) -> Grammar:
        around = self.spacing.text
        if language is not None and self._are_plain(language):
            return chain(self._mark(STRING), self._restricted(chain(self._edge(), language, self._edge())))
        texts: Grammar = self._texts if language is None else Intersection([language, self._texts])
        if around is not None:
            texts = chain(around, texts, around)
        elif self.style.strips and language is not None:
            texts = _stripped(texts)
        return chain(self._mark(STRING), self._restricted(texts))

    def _are_plain(self, language: Grammar) -> bool:
        """Whether texts are listed, and none has a mark, or a line break at an end that would be lost."""
        listed = language.items if isinstance(language, Choice) else (language,)
        texts = [each.data for each in listed if isinstance(each, Literal)]
        if len(texts) != len(listed) or any(self.style.stop.encode() in text for text in texts):
            return False
        loses_lines = self.style.strips and self.spacing.text is None
        return not (loses_lines and any(text.strip(b"\n") != text for text in texts))

    def array(self, items: Grammar) -> Grammar:
        return chain(self._mark(ARRAY), items)

    def object(self, members: Grammar) -> Grammar:
        return chain(self._mark(OBJECT), members)

    def _mark(self, types: int) -> Grammar:
        """What stands between a name, or the start of an item, and a value."""
        mark = next(mark for bits, mark in self.style.marks if bits & types)
        return chain(self.spacing.middle if mark.startswith("<") else EPSILON, self.spell(mark))

    def _json(self, mark: Grammar, value: Grammar) -> Grammar:
        return chain(mark, self.spacing.value, value, self.spacing.value)


@lru_cache(maxsize=64)
def _schema_of(types: int) -> dict[str, Any]:
    return {"type": [name for bits, name in TYPE_NAMES.items() if bits & types]}


def _or_none(term: Grammar | None) -> Grammar | None:
    """A term; ``None`` for the empty text."""
    return None if term is EPSILON else term


def _characters_without(*marks: str, most: int | None = None) -> Grammar:
    """Characters that are neither control characters nor marks: one, and up to ``most``."""
    taken = sorted({(0, 0x1F), *((ord(mark), ord(mark)) for mark in marks)})
    left = [(end + 1, start - 1) for (_, end), (start, _) in zip(taken, [*taken[1:], (0x110000, 0)], strict=True)]
    return Repeat(CharClass([(low, high) for low, high in left if low <= high]), 1, most)


def _excluded_names(language: Grammar) -> list[str] | None:
    """The names that a language lacks, if it has all others; None if it is not known to."""
    if language == _ANY_TEXT:
        return []
    item = language.item if isinstance(language, Complement) else None
    items = item.items if isinstance(item, Choice) else (item,)
    names = [each.data.decode() for each in items if isinstance(each, Literal)]
    return names if len(names) == len(items) else None


def _with_entities(name: str) -> str:
    return "".join(_ENTITIES.get(character, character) for character in name)


def _stripped(texts: Grammar) -> Grammar:
    """The texts from which a reader that strips one line break at each end gets one of ``texts``."""
    ends, begins = sequence(_ANY_TEXT, _LINE), sequence(_LINE, _ANY_TEXT)
    right = Choice([sequence(texts, _LINE), Intersection([texts, Complement(ends)])])
    return Choice([sequence(_LINE, right), Intersection([right, Complement(begins)])])
