r"""Look-arounds that see one character: they are boundaries, like ``\b``, and may stand anywhere.

``(?!-)``, ``(?<=[a-z])`` and ``(?=,|$)`` say something about one adjacent character or the edge of the text only.
"""

from __future__ import annotations

from collections.abc import Iterator

from structgen.grammar.nodes import CharClass, Choice, Literal
from structgen.grammar.regex.context import ANYTHING, NOTHING, Side
from structgen.grammar.regex.syntax import Alternatives, Boundary, Node

__all__ = ["as_boundary", "has_fixed_width"]


def as_boundary(body: Node, *, ahead: bool, negative: bool) -> Boundary | None:
    """The boundary that a look-around with this body is, or ``None`` if it sees more than one character."""
    left = right = NOTHING
    for item in body.items if isinstance(body, Alternatives) else (body,):
        for sides in _sides(item, ahead=ahead):
            if sides is None:
                return None
            left, right = left.joined(sides[0]), right.joined(sides[1])
    if not negative:
        return Boundary(((left, ANYTHING), (ANYTHING, right)))
    before, after = left.complement, right.complement
    return None if before is None or after is None else Boundary(((before, after),))


def has_fixed_width(body: Node) -> bool:
    """Whether a body that ``as_boundary`` knows has alternatives of one width only, as Python's look-behind wants."""
    items = body.items if isinstance(body, Alternatives) else (body,)
    return len({isinstance(item, Boundary) for item in items}) == 1


def _sides(item: Node, *, ahead: bool) -> Iterator[tuple[Side, Side] | None]:
    """What one alternative accepts: something on the left or something on the right.

    Yields ``None`` for an alternative that is not of that kind.
    """
    if isinstance(item, Boundary):
        for left, right in item.cells:
            if left == ANYTHING:
                yield NOTHING, right
            elif right == ANYTHING:
                yield left, NOTHING
            else:
                yield None
        return
    for term in item.items if isinstance(item, Choice) else (item,):
        side = _side(term)
        yield None if side is None else (NOTHING, side) if ahead else (side, NOTHING)


def _side(term: Node) -> Side | None:
    """One character of ``term`` on a side; ``None`` if its texts are not single characters."""
    if isinstance(term, CharClass):
        return Side(at_edge=False, characters=term.ranges)
    if isinstance(term, Literal):
        text = term.data.decode()
        if len(text) == 1:
            return Side(at_edge=False, characters=((ord(text), ord(text)),))
    return None
