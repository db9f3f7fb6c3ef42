"""The tags of one format, and their triggers in free text: which tags begin with which, and that each is reached."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, final

from structgen.errors import found, some
from structgen.frontends.free_text import hidden_by
from structgen.frontends.json_schema import known_schemas
from structgen.frontends.json_schema.source.json_value import SchemaText
from structgen.frontends.structural_tag.place import SUBJECT, Place, is_text
from structgen.grammar.limits import spend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structgen.frontends.json_schema import JsonPolicy
    from structgen.frontends.structural_tag.place import Place
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["Tags", "by_trigger", "check_patterns"]


_LEVELS: Final = 2
"""How deep the content of a tag is below the format that lists it."""
_JSON: Final = "json"


@final
class Tags:
    """The tags that a format lists; ``len()`` is their number.

    Args:
        outer: the format, whose field ``tags`` is a list of objects.
        limits: bounds on their nesting.

    Raises:
        GrammarError: one is no tag; the first that is wrong.
    """

    def __init__(self, outer: Place, limits: Limits) -> None:
        self._outer = outer
        self._limits = limits
        self._values: list[Any] = outer.value["tags"]
        may_be_plain = outer.depth + _LEVELS <= limits.nesting
        self._places = [
            None if may_be_plain and _is_plain(value) else self._read(at) for at, value in enumerate(self._values)
        ]
        self._pointer = f"{outer.pointer}/tags/"

    def __len__(self) -> int:
        return len(self._values)

    def _read(self, at: int) -> Place:
        return self._outer.inner(self._limits, "tags", at, default="tag")

    def place(self, at: int) -> Place:
        """A tag, checked."""
        return self._places[at] or self._read(at)

    def pointer(self, at: int) -> str:
        """Where a tag is."""
        return f"{self._pointer}{at}"

    def field(self, at: int, name: str) -> Any:
        """The value of a field of a tag."""
        return self._values[at][name]

    def plain_contents(self, policy: JsonPolicy) -> list[Grammar | None]:
        """The terms of plain tags whose schemas are simple; ``None`` for all others.

        Complexity: linear in the schemas.
        """
        found: list[Grammar | None] = [None] * len(self._values)
        by_style: defaultdict[str, list[int]] = defaultdict(list)
        for at, place in enumerate(self._places):
            if place is None:
                by_style[self._values[at]["content"].get("style", _JSON)].append(at)
        for style, indices in by_style.items():
            schemas = [self._values[at]["content"]["json_schema"] for at in indices]
            if style == _JSON:
                terms = known_schemas(schemas, policy, self._limits)
            else:
                from structgen.frontends.xml_arguments import known_xml_arguments

                terms = known_xml_arguments(schemas, style, policy, self._limits)
            for at, term in zip(indices, terms, strict=True):
                found[at] = term
        return found


def _is_plain(tag: dict[str, Any]) -> bool:
    """Whether a tag is a text, a schema and a text; ``Place.of`` finds no fault with such a tag and its content."""
    if len(tag) != 4 or tag.get("type") != "tag":
        return False
    content = tag.get("content")
    if content.__class__ is not dict or not (is_text(tag.get("begin")) and is_text(tag.get("end"))):
        return False
    if content.get("type") != "json_schema" or content.get("json_schema").__class__ not in _SCHEMAS:
        return False
    return len(content) == 2 or (len(content) == 3 and is_text(content.get("style")))


_SCHEMAS: Final = (SchemaText, dict)


_CHECKS_OF_A_STEP: Final = 16
"""How many texts are compared with another one in a microsecond."""
_CHARACTERS_OF_A_STEP: Final = 250
"""How many characters are searched for a text in a microsecond."""


def by_trigger(
    place: Place, stops: Sequence[str], begins: Sequence[Any], tag: Callable[[int], Place]
) -> dict[str, list[tuple[int, str]]]:
    """The tags of each trigger: their numbers, and the rests of their begins.

    Args:
        place: the format with the triggers.
        stops: what its free text does not hold.
        begins: the begins of its tags.
        tag: the tag of a number.

    Raises:
        GrammarError: a tag has not exactly one trigger, or a trigger no tag, or a trigger can never be written.
    """
    triggers = place.value["triggers"]
    check_patterns(place, [("triggers", at) for at in range(len(triggers))], triggers, stops)
    groups: dict[str, list[tuple[int, str]]] = {trigger: [] for trigger in triggers}
    if len(groups) < len(triggers):
        raise place.wrong("a trigger is given twice", "triggers", evidence=found(triggers))
    lengths = {len(trigger) for trigger in groups}
    for at, begin in enumerate(begins):
        spend(1 + len(lengths) // _CHECKS_OF_A_STEP, SUBJECT)
        if not isinstance(begin, str):
            raise tag(at).wrong(
                "a token begins it", "begin", remedy="begin it with a text, or use token_triggered_tags"
            )
        trigger = next((begin[:length] for length in lengths if begin[:length] in groups), None)  # no other fits
        if trigger is None:
            raise tag(at).wrong(
                "no trigger is a prefix of the begin",
                "begin",
                evidence=f"it is {begin!r:.60}, the triggers are {some(triggers)}",
                remedy="add a trigger, or begin the tag with one",
            )
        groups[trigger].append((at, begin[len(trigger) :]))
    for at, trigger in enumerate(triggers):
        if not groups[trigger]:
            raise place.wrong(
                "no tag begins with the trigger", "triggers", at, evidence=found(trigger), remedy="leave it out"
            )
    return groups


def check_patterns(
    place: Place, steps: Sequence[tuple[str | int, ...]], patterns: Sequence[str], stops: Sequence[str]
) -> None:
    """Refuse a trigger or pattern that free text without ``stops`` can never reach the end of."""
    known = dict.fromkeys(patterns)
    whole = "\0".join(patterns)
    spend(1 + (len(known) + len(stops)) * len(whole) // _CHARACTERS_OF_A_STEP, SUBJECT)
    before_ends = "\0".join(pattern[:-1] for pattern in known)
    if not any(text in before_ends for text in known) and not any(text in whole for text in stops):
        return  # a few long searches instead of many short ones
    for step, pattern in zip(steps, patterns, strict=True):
        spend(1 + (len(known) + len(stops)) // _CHECKS_OF_A_STEP, SUBJECT)
        other = hidden_by(pattern, known, stops)
        if other is None:
            continue
        if other in known and other != pattern:
            problem, remedy = "it can't be told from another one that ends before it", "use one of the two"
        else:
            problem, remedy = "it holds a string that the text before it may not hold", "choose another one"
        raise place.wrong(problem, *step, evidence=f"{other!r:.60} is in {pattern!r:.60}", remedy=remedy)
