"""Triggers and patterns in free text: which tags begin with which, and that each can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from structgen.errors import found, some
from structgen.frontends.free_text import hidden_by
from structgen.frontends.structural_tag.place import SUBJECT
from structgen.grammar.limits import spend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structgen.frontends.structural_tag.place import Place

__all__ = ["by_trigger", "check_patterns"]

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
