"""From flat rules to lines of text, for all dialects with rules; and the log of losses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from structgen.errors import UnsupportedFeature
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar, Reference, Rules

__all__ = ["SHORT_COUNTS", "Loss", "LossLog", "Spelling", "Style", "Treatment", "Written", "written_rules"]


class Treatment(Enum):
    """How a construct that a dialect cannot express was treated."""

    DROPPED = "dropped"
    """An annotation is dropped; the language is the same."""
    RENAMED = "renamed"
    """A rule has another name; the language is the same."""
    SUPERSET = "superset"
    """A restriction is dropped: the written language is larger. Only with ``superset=True``."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One construct that the written grammar lacks.

    Attributes:
        what: the construct: ``"Capture 'year'"``.
        where: the rule that contains it, ``""`` outside all rules.
        treatment: how it was treated.
        detail: one clause more, or ``""``.
    """

    what: str
    where: str
    treatment: Treatment
    detail: str = ""

    def __str__(self) -> str:
        """One line for people."""
        where = f" in rule {self.where}" if self.where else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.what}{where}: {self.treatment.value}{detail}"


@dataclass(frozen=True, slots=True)
class Written:
    """A grammar as a text of a dialect.

    Attributes:
        text: what was written.
        losses: the constructs that it lacks, each once.
    """

    text: str
    losses: tuple[Loss, ...]


class LossLog:
    """Collects losses while a grammar is written, and refuses those not allowed."""

    def __init__(self, dialect: str, *, superset: bool) -> None:
        self.dialect = dialect
        self.superset = superset
        self._found: dict[Loss, None] = {}

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses, in order of occurrence."""
        return tuple(self._found)

    @property
    def is_widened(self) -> bool:
        """Whether a restriction was dropped."""
        return any(loss.treatment is Treatment.SUPERSET for loss in self._found)

    def note(self, what: str, where: str, treatment: Treatment, detail: str = "") -> None:
        """Record the loss of an annotation or a name."""
        self._found[Loss(what, where, treatment, detail)] = None

    def widen(self, feature: str, where: str, problem: str) -> None:
        """Record that a restriction is dropped.

        Raises:
            UnsupportedFeature: ``superset`` is false.
        """
        if not self.superset:
            raise self.refused(feature, where, problem, "write a superset (superset=True, --superset), or leave it out")
        self.note(feature, where, Treatment.SUPERSET, problem)

    def refused(self, feature: str, where: str, problem: str, remedy: str = "") -> UnsupportedFeature:
        """Make the error for a construct that cannot be expressed."""
        return UnsupportedFeature(
            f"grammar in {self.dialect}",
            feature,
            where=where,
            problem=f"{feature}{f' in rule {where}' if where else ''}: {problem}",
            remedy=remedy or "write a simpler grammar, or choose another dialect",
        )


_MAX_DEPTH: Final = 12
"""The maximum nesting of parentheses; a deeper part becomes a rule of its own."""
_MAX_LENGTH: Final = 400
"""The maximum length of an inlined part."""
_MAX_TWICE: Final = 24
"""The maximum length of a part that is repeated at each occurrence."""


SHORT_COUNTS: Final[Mapping[tuple[int, int | None], str]] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
"""The marks of frequent repetitions, the same in all dialects."""


class Style(NamedTuple):
    """How rules look in a dialect.

    Attributes:
        root: the name of the start rule.
        define: the text between a name and its expression.
        bad: a regular expression for characters that names cannot contain.
        filler: the replacement of such characters.
        prefix: added to a name with an invalid first character.
        first: a regular expression for the first character of names.
        reserved: names with another meaning.
        is_lower: whether names are in lower case.
    """

    root: str
    define: str
    bad: str
    filler: str
    prefix: str
    first: str
    reserved: Collection[str] = ()
    is_lower: bool = False


class Spelling(Protocol):
    """How the leaves and operators of a dialect are spelled."""

    style: Style

    def leaf(self, node: Grammar) -> str:
        """A literal, class or token, as an atom."""

    def repetition(self, atom: str, min_count: int, max_count: int | None) -> str:
        """A repeated atom."""

    def empty(self) -> str:
        """The empty string as an alternative of its own."""


@dataclass(slots=True)
class _WrittenPiece:
    """Spelled text; ``level`` is 0 for alternatives, 1 for a sequence, 2 for a repetition, 3 for an atom."""

    text: str
    level: int
    depth: int = 0


def written_rules(flat: Rules, spelling: Spelling, log: LossLog) -> str:
    """Write flat rules of the common operators, the first rule first.

    Complexity: linear in the distinct terms.
    """
    return _RuleWriter(flat, spelling, log).text()


class _RuleWriter:
    def __init__(self, flat: Rules, spelling: Spelling, log: LossLog) -> None:
        self.flat = flat
        self.spelling = spelling
        self.log = log
        self.names: dict[str, str] = {}
        self.taken: set[str] = set(spelling.style.reserved)
        self.lines: dict[str, str] = {}
        self.pieces: dict[int, _WrittenPiece] = {}
        self.uses = Counter(id(child) for node in _all_nodes(flat) for child in node.children)
        self.parts = 0

    def text(self) -> str:
        body, style = self.flat.body, self.spelling.style
        start = body.name if isinstance(body, Reference) else None
        self.taken.add(style.root)
        if start is not None:
            self.names[start] = style.root
            if start != style.root and not _is_made(start):
                self.log.note(f"name {start!r}", start, Treatment.RENAMED, f"it is {style.root} here")
        own = [name for name, _ in self.flat.rules if name != start]
        for name in own:
            self.names[name] = self._free(_cleaned(name, style))
            if self.names[name] != name and not _is_made(name):
                self.log.note(f"name {name!r}", name, Treatment.RENAMED, f"it is {self.names[name]} here")
        if start is None:
            self._define(style.root, body)
        for name, term in sorted(self.flat.rules, key=lambda rule: rule[0] != start):
            self._define(self.names[name], term)
        return "".join(f"{name}{style.define}{text}".rstrip() + "\n" for name, text in self.lines.items())

    def _define(self, name: str, term: Grammar) -> None:
        self.lines[name] = ""  # rules of parts come after it
        for node in ir.postorder(term, known=lambda node: id(node) in self.pieces):
            self.pieces[id(node)] = self._piece(node, is_top=node is term)
        self.lines[name] = self._alternatives(self.pieces[id(term)])

    def _piece(self, node: Grammar, *, is_top: bool) -> _WrittenPiece:
        below = [self.pieces[id(child)] for child in node.children]
        piece = self._joined(node, below)
        is_long = len(piece.text) > _MAX_LENGTH or (self.uses[id(node)] > 1 and len(piece.text) > _MAX_TWICE)
        if not is_top and node.children and (piece.depth > _MAX_DEPTH or is_long):
            self.parts += 1
            name = self._free(f"part{self.spelling.style.filler}{self.parts}")
            self.lines[name] = self._alternatives(piece)
            return _WrittenPiece(name, 3)
        return piece

    def _joined(self, node: Grammar, below: list[_WrittenPiece]) -> _WrittenPiece:
        depth = max((piece.depth for piece in below), default=0)
        match node:
            case Reference(name=name):
                return _WrittenPiece(self.names[name], 3)
            case ir.Sequence():
                return _WrittenPiece(" ".join(self._atom(piece, 1) for piece in below), 1, depth + 1)
            case ir.Choice():
                return _WrittenPiece(" | ".join(self._atom(piece, 1) for piece in below), 0, depth + 1)
            case ir.Repeat():
                return _WrittenPiece(
                    self.spelling.repetition(self._atom(below[0], 3), node.min, node.max), 2, depth + 1
                )
            case ir.Literal(data=b""):
                return _WrittenPiece("", 1)
            case _:
                return _WrittenPiece(self.spelling.leaf(node), 3)

    def _atom(self, piece: _WrittenPiece, level: int) -> str:
        if not piece.text and level == 1:
            return self.spelling.empty()
        return piece.text if piece.level >= level else f"({piece.text})"

    def _alternatives(self, piece: _WrittenPiece) -> str:
        return piece.text or self.spelling.empty()

    def _free(self, name: str) -> str:
        found, count = name, 1
        while found in self.taken:
            count += 1
            found = f"{name}{self.spelling.style.filler}{count}"
        self.taken.add(found)
        return found


def _cleaned(name: str, style: Style) -> str:
    found = re.sub(f"(?:{style.bad})+", style.filler, name.lower() if style.is_lower else name)
    if found != name:
        found = found.strip(style.filler)
    return found if re.match(style.first, found) else style.prefix + found


def _is_made(name: str) -> bool:
    """Whether a rule was made by the conversion, so that its renaming is no loss."""
    return re.search(r"\.(state[0-9]+|after\..*|nonempty|[0-9]+)$|^steps\.", name) is not None


def _all_nodes(flat: Rules) -> Iterable[Grammar]:
    seen: set[int] = set()
    for term in (*(term for _, term in flat.rules), flat.body):
        for node in ir.postorder(term, known=lambda node: id(node) in seen):
            seen.add(id(node))
            yield node
