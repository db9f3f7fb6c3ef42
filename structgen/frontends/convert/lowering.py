"""From any term to an equal term of the common operators, which every dialect has.

These are literals, character classes, sequences, choices, repetitions, references, and tokens if the dialect has them.
First each operator is expressed by these, intersections and complements. Then intersections and complements become the
rules of their automata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.convert.automaton import NotRegular, TooLarge, right_linear
from structgen.frontends.convert.layout import LossLog, Treatment
from structgen.frontends.json_schema.json_string import ANY_SPELLING, spelled_class, spelled_literal
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import with_children
from structgen.grammar.analysis import productive_rules
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.nodes import ANY_CHAR, EMPTY, EPSILON, Grammar, Reference, Repeat, Rules
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import resolve
from structgen.grammar.visitor import NodeTable, RecursiveTerm, fold

__all__ = ["Abilities", "lowered"]

_MAX_PERMUTED: Final = 5
_SPLICED: Final = 16
"""The maximum size of a sequence or choice into which inner ones are spliced."""
_ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


@dataclass(frozen=True, slots=True)
class Abilities:
    """The operators that a dialect has in addition to the common ones.

    Attributes:
        is_token_known: whether it has notation for a token or a set of tokens.
        has_left_recursion: whether its rules may begin with themselves.
        max_count: the largest bound of a repetition; larger ones are nested.
    """

    is_token_known: Callable[[Grammar], bool]
    has_left_recursion: bool = True
    max_count: int | None = None


def lowered(grammar: Grammar, abilities: Abilities, log: LossLog) -> Rules:
    """Return an equal grammar of the common operators, with one flat set of rules.

    Raises:
        UnsupportedFeature: a part cannot be expressed.
        UnsatisfiableGrammar: the grammar matches no string.
        GrammarError: a reference has no rule.
        LimitExceeded: the result would be too large.
    """
    flat = resolve(grammar, through_shared=True)
    expressed = _Expresser(dict(flat.rules), abilities, log).run(flat.body)
    if log.is_widened and any(isinstance(node, ir.Complement) for node in ir.postorder(flat)):
        # A restriction dropped below a complement would make the complement too small.
        expressed = _Expresser(dict(flat.rules), abilities, log, opens_complements=True).run(flat.body)
    if not abilities.has_left_recursion:
        without = remove_left_recursion(expressed)
        expressed = resolve(without, through_shared=True)
    return _plain(_without_booleans(expressed, log), abilities)


class _Expresser:
    """Expresses operators by the common ones, intersections and complements."""

    def __init__(
        self, rules: Mapping[str, Grammar], abilities: Abilities, log: LossLog, *, opens_complements: bool = False
    ) -> None:
        self.opens_complements = opens_complements
        self.rules = rules
        self.abilities = abilities
        self.log = log
        self.where = ""
        self.made: dict[int, Grammar] = {}
        self.spelled: dict[int, Grammar] = {}

    def run(self, body: Grammar) -> Rules:
        rules = {}
        for name, term in self.rules.items():
            self.where = name
            rules[name] = self.rewritten(term)
        self.where = ""
        return Rules(rules, self.rewritten(body))

    def rewritten(self, root: Grammar) -> Grammar:
        return fold(root, lambda node, parts: _EXPRESSED[type(node)](self, node, parts), results=self.made)

    def byte_class(self, node: ir.ByteClass, _: list[Grammar]) -> Grammar:
        if node.ranges and node.ranges[-1][1] > 0x7F:
            raise self.refused("ByteClass", "its bytes beyond ASCII are no characters")
        return ir.CharClass(node.ranges)

    def token(self, node: Grammar, _: list[Grammar]) -> Grammar:
        if not self.abilities.is_token_known(node):
            raise self.refused(type(node).__name__, "there is no notation for this token")
        return node

    def annotated(self, node: ir.Capture | ir.Tempered, parts: list[Grammar]) -> Grammar:
        what = f"Capture {node.name!r}" if isinstance(node, ir.Capture) else f"Tempered {node.temperature:g}"
        self.log.note(what, self.where, Treatment.DROPPED)
        return parts[0]

    def complement(self, node: ir.Complement, parts: list[Grammar]) -> Grammar:
        if not self.opens_complements:
            return with_children(node, parts)
        self.log.widen("Complement", self.where, "a restriction was dropped, perhaps below it")
        return _ANY_TEXT

    def distinct(self, _: ir.Distinct, parts: list[Grammar]) -> Grammar:
        self.log.widen("Distinct", self.where, "uniqueness cannot be expressed")
        return parts[0]

    def label(self, _: ir.Label, parts: list[Grammar]) -> Grammar:
        self.log.widen("Label", self.where, "the validity of labels cannot be expressed")
        return parts[0]

    def literal(self, node: ir.Literal, _: list[Grammar]) -> Grammar:
        try:
            node.data.decode()
        except UnicodeDecodeError:
            raise self.refused("Literal", f"its bytes {node.data[:20]!r} are no text") from None
        return node

    def refused(self, feature: str, problem: str) -> Exception:
        return self.log.refused(feature, self.where, problem)

    def budget(self, node: ir.Budget, parts: list[Grammar]) -> Grammar:
        if node.tokens is not None:
            self.log.widen("Budget", self.where, f"at most {node.tokens} tokens cannot be expressed")
        if node.characters is None:
            return parts[0]
        return ir.Intersection((parts[0], Repeat(ANY_CHAR, 0, node.characters)))

    def permutation(self, node: ir.Permutation, parts: list[Grammar]) -> Grammar:
        *items, rest, separator = parts
        if len(items) > _MAX_PERMUTED:
            self.log.widen("Permutation", self.where, f"{len(items)} items have too many orders to write")
            member = ir.Choice((*items, rest))
            return ir.Choice((EPSILON, ir.Sequence((member, Repeat(ir.Sequence((separator, member)), 0, None)))))
        return _Permuter(node, items, rest, separator).after(frozenset(), 0)

    def json_string(self, _: ir.JsonString, parts: list[Grammar]) -> Grammar:
        """The spellings of a regular term in a JSON string; references are expanded."""

        def below(node: Grammar) -> tuple[Grammar, ...]:
            return (self.rewritten(self.rules[node.name]),) if isinstance(node, Reference) else node.children

        try:
            return ir.Sequence((_QUOTE, fold(parts[0], self.spelling, results=self.spelled, below=below), _QUOTE))
        except RecursiveTerm:
            raise self.refused("JsonString", "its value is recursive") from None

    def spelling(self, node: Grammar, parts: list[Grammar]) -> Grammar:
        match node:
            case ir.Literal(data=data):
                return spelled_literal(data)
            case ir.CharClass(ranges=ranges):
                return spelled_class(ranges)
            case ir.Complement():
                return ir.Intersection((ANY_SPELLING, ir.Complement(parts[0])))
            case ir.Intersection() if not parts:
                return ANY_SPELLING
            case ir.SpecialToken() | ir.TokenSet():
                raise self.refused("JsonString", "its value holds a token, which is no text")
            case Reference():
                return parts[0]
            case _:
                return with_children(node, parts)


_QUOTE: Final = ir.Literal(b'"')
_EXPRESSED: Final[NodeTable[Callable[[_Expresser, Any, list[Grammar]], Grammar]]] = NodeTable(
    "conversion",
    {
        (ir.CharClass, ir.Sequence, ir.Choice, Repeat, ir.Intersection, Reference, Rules): lambda _, node, parts: (
            with_children(node, parts)
        ),
        (Described, ir.Shared): lambda _, __, parts: parts[0],
        ir.Literal: _Expresser.literal,
        ir.ByteClass: _Expresser.byte_class,
        (ir.SpecialToken, ir.TokenSet): _Expresser.token,
        (ir.Capture, ir.Tempered): _Expresser.annotated,
        ir.Budget: _Expresser.budget,
        ir.Complement: _Expresser.complement,
        ir.JsonString: _Expresser.json_string,
        ir.Permutation: _Expresser.permutation,
        ir.Distinct: _Expresser.distinct,
        ir.Label: _Expresser.label,
    },
)


@dataclass(slots=True)
class _Permuter:
    """A permutation written out: the continuations by set of used items and number of items."""

    node: ir.Permutation
    items: list[Grammar]
    rest: Grammar
    separator: Grammar
    made: dict[tuple[frozenset[int], int], Grammar] = field(default_factory=dict, init=False)

    def after(self, used: frozenset[int], count: int) -> Grammar:
        """The continuation after ``count`` items; ``used`` of them are named."""
        todo = [(used, count)]
        while todo:
            key = todo[-1]
            missing = [following for following in self.following(*key) if following not in self.made]
            if missing:
                todo += missing
                continue
            todo.pop()
            if key not in self.made:
                self.made[key] = self.joined(*key)
        return self.made[used, count]

    def is_counted(self, count: int) -> bool:
        return count == 0 or count < self.node.min or self.node.max is not None

    def following(self, used: frozenset[int], count: int) -> Iterable[tuple[frozenset[int], int]]:
        if self.node.max is not None and count >= self.node.max:
            return
        more = count + 1 if self.is_counted(count) else count
        for index in range(len(self.items)):
            if index not in used:
                yield used | {index}, more
        if self.is_counted(count):
            yield used, more

    def joined(self, used: frozenset[int], count: int) -> Grammar:
        ways: list[Grammar] = (
            [EPSILON] if count >= self.node.min and used.issuperset(range(len(self.node.required))) else []
        )
        between = self.separator if count else EPSILON
        for now, more in self.following(used, count):
            member = self.items[next(iter(now - used))] if now != used else self.rest
            ways.append(ir.Sequence((between, member, self.made[now, more])))
        after = ir.Choice(ways)
        if self.is_counted(count):
            return after
        return ir.Sequence((Repeat(ir.Sequence((self.separator, self.rest)), 0, None), after))


def _without_booleans(flat: Rules, log: LossLog) -> Rules:
    """Replace each outermost intersection and complement by the rules of its automaton."""
    rules = dict(flat.rules)
    found: dict[str, Grammar] = {}
    made: dict[int, Grammar] = {}
    count = 0
    for where, term in [*flat.rules, ("", flat.body)]:
        stack = [(term, False)]
        while stack:
            node, is_open = stack.pop()
            if id(node) in made:
                continue
            if isinstance(node, (ir.Intersection, ir.Complement)):
                count += 1
                made[id(node)], own = _automaton(node, rules, f"{where or 'part'}.{count}", where, log)
                found |= own
            elif is_open:
                made[id(node)] = with_children(node, [made[id(child)] for child in node.children])
            else:
                stack.append((node, True))
                stack.extend((child, False) for child in node.children)
        if where:
            found[where] = made[id(term)]
    return Rules(found, made[id(flat.body)])


def _automaton(
    node: Grammar, rules: Mapping[str, Grammar], name: str, where: str, log: LossLog
) -> tuple[Grammar, dict[str, Grammar]]:
    feature = type(node).__name__
    try:
        return right_linear(node, rules, name)
    except NotRegular:
        problem = "it is not regular, so it has no automaton"
    except TooLarge:
        problem = "its automaton is too large to be written"
    log.widen(feature, where, problem)
    if isinstance(node, ir.Intersection):
        for item in node.items:  # each is a superset of the intersection
            if not any(isinstance(part, (ir.Intersection, ir.Complement)) for part in ir.postorder(item)):
                return item, {}
    return _ANY_TEXT, {}


def _plain(flat: Rules, abilities: Abilities) -> Rules:
    """Remove parts that match nothing, and redundant operators."""
    rules = dict(flat.rules)
    rules["<body>"] = flat.body
    productive = productive_rules(rules)
    if "<body>" not in productive:
        raise UnsatisfiableGrammar("grammar", "it matches no string", remedy="there is nothing to write")
    made: dict[int, Grammar] = {}
    counted: dict[str, Grammar] = {}
    plain: dict[str, Grammar] = {}

    def simplified(node: Grammar, parts: list[Grammar]) -> Grammar:
        simple = _simplified(node, parts, productive)
        return simple if abilities.max_count is None else _in_steps(simple, abilities.max_count, counted)

    stack = [("<body>", flat.body)]
    while stack:
        name, term = stack.pop()
        if name in plain:
            continue
        plain[name] = fold(term, simplified, results=made)
        names = [node.name for node in ir.postorder(plain[name]) if isinstance(node, Reference)]
        stack += [(found, rules[found]) for found in reversed(names) if found not in plain and found in rules]
    body = plain.pop("<body>")
    order = [name for name, _ in flat.rules if name in plain]
    return Rules([*((name, plain[name]) for name in order), *counted.items()], body)


def _simplified(node: Grammar, parts: list[Grammar], productive: frozenset[str]) -> Grammar:
    match node:
        case ir.Sequence():
            retained = [part for part in parts if not _is_empty_text(part)]
            if any(map(_is_nothing, retained)):
                return EMPTY
            return ir.sequence(*retained) if sum(map(_width, retained)) <= _SPLICED else ir.Sequence(retained)
        case ir.Choice():
            retained = [part for part in parts if not _is_nothing(part)]
            if sum(map(_width, retained)) <= _SPLICED:
                retained = list({_key(way): way for part in retained for way in _ways(part)}.values())
            return retained[0] if len(retained) == 1 else ir.Choice(retained)
        case Repeat(min=min_count, max=max_count):
            if max_count == 0 or _is_empty_text(parts[0]) or (_is_nothing(parts[0]) and min_count == 0):
                return EPSILON
            if _is_nothing(parts[0]) or (min_count, max_count) == (1, 1):
                return parts[0]
            return with_children(node, parts)
        case Reference(name=name):
            return node if name in productive else EMPTY
        case ir.CharClass(ranges=()):
            return EMPTY
        case ir.CharClass(ranges=((low, high),)) if low == high:
            return ir.literal(chr(low))
        case _:
            return node


def _is_empty_text(node: Grammar) -> bool:
    return isinstance(node, ir.Literal) and not node.data


def _is_nothing(node: Grammar) -> bool:
    return isinstance(node, ir.Choice) and not node.items


def _key(node: Grammar) -> object:
    """A key of equal leaves; other terms are compared by identity, which is faster."""
    match node:
        case ir.Literal(data=data):
            return data
        case ir.CharClass(ranges=ranges):
            return ranges
        case Reference(name=name):
            return name
        case _:
            return id(node)


def _ways(node: Grammar) -> tuple[Grammar, ...]:
    return node.items if isinstance(node, ir.Choice) else (node,)


def _width(node: Grammar) -> int:
    """The cost of splicing a part: its items, and the bytes copied when literals are joined."""
    items = node.items if isinstance(node, (ir.Sequence, ir.Choice)) else (node,)
    return len(items) + sum(len(item.data) // 16 for item in items if isinstance(item, ir.Literal))


def _in_steps(node: Grammar, max_count: int, rules: dict[str, Grammar]) -> Grammar:
    """A repetition with bounds of at most ``max_count``, if necessary of rules that are repetitions."""
    if not isinstance(node, Repeat) or max(node.min, node.max or 0) <= max_count:
        return node
    parts = _chunks(node.item, node.min, node.min, max_count, rules)
    if node.max is None:
        parts.append(Repeat(node.item, 0, None))
    else:
        parts += _chunks(node.item, 0, node.max - node.min, max_count, rules)
    return parts[0] if len(parts) == 1 else ir.Sequence(parts)


def _chunks(item: Grammar, min_count: int, count: int, max_count: int, rules: dict[str, Grammar]) -> list[Grammar]:
    """``item`` ``count`` times, or from 0 to ``count`` times."""
    parts: list[Grammar] = []
    while count:
        times, rest = divmod(count, max_count)
        if rest:
            parts.append(Repeat(item, rest if min_count else 0, rest))
        if times:
            name = f"steps.{len(rules) + 1}"
            rules[name] = Repeat(item, max_count if min_count else 0, max_count)
            item = Reference(name)
        count = times
    return parts
