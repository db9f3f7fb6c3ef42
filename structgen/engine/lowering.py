"""From IR terms to the hash-consed terms of the native engine.

The walk keeps its own stack, so the depth of a grammar costs memory only.  A node that several parents share is
lowered once for each scope that it is met in.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.nodes import (
    ANY_CHAR,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
)
from structgen.grammar.report import Described

if TYPE_CHECKING:
    from structgen_kernels._native import Builder

    from structgen.engine.shared_engine import SharedEngine
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.limits import Limits

__all__ = ["lower"]

_MAX_COUNT: Final = 2**31 - 1
_MAX_BOOLEAN_NESTING: Final = 64
_REGULAR_ONLY = (Intersection, Complement, JsonString)
_SYMBOLS = (Literal, ByteClass, CharClass)


class _Scope:
    """The rules that one :class:`Rules` node binds, within the scope around it."""

    __slots__ = ("around", "bodies", "rules")

    def __init__(self, node: Rules, around: _Scope | None, builder: Builder | None) -> None:
        self.around = around
        self.bodies = dict(node.rules)
        self.rules = {} if builder is None else {name: builder.add_rule(name) for name, _ in node.rules}

    def find(self, name: str) -> _Scope | None:
        scope: _Scope | None = self
        while scope is not None and name not in scope.bodies:
            scope = scope.around
        return scope


_Key = tuple[int, int, "_Mode"]


class _Mode(IntEnum):
    """Where a node stands: what it may hold, and which bytes spell it."""

    TEXT = 0
    REGULAR = 1
    """Text inside an intersection or complement: no rules may be called, so references are spliced in."""
    DECODED = 2
    """The value of a JSON string: regular, and of any bytes, since what no token spells can be escaped."""


class _Task:
    """A node met in a scope."""

    __slots__ = ("inner", "key", "mode", "node", "opened", "parts", "pending", "scope")

    def __init__(self, node: Grammar, scope: _Scope | None, key: _Key, mode: _Mode) -> None:
        self.node = node
        self.scope = scope
        self.mode = mode
        self.key = key
        self.opened = False
        self.inner: _Scope | None = None
        self.parts: list[_Key] = []
        self.pending: list[_Task] = []


def lower(grammar: Grammar, engine: SharedEngine, vocabulary: Vocabulary, builder: Builder, limits: Limits) -> int:
    """Make the native term of a closed grammar and solve its rules.

    Args:
        grammar: a closed term.
        engine: the engine that ``builder`` writes to.
        vocabulary: resolves special tokens.
        builder: holds the engine's lock.
        limits: bounds the number of nodes.

    Raises:
        GrammarError: a free reference, a recursive rule where the language must be regular, or a special token
            that the grammar may not use.
        LimitExceeded: more nodes than ``limits.grammar_nodes``, or boolean operators nested too deeply.
    """
    lowering = _Lowering(engine, vocabulary, builder, limits)
    term = lowering.run(grammar)
    builder.solve_rules()
    if builder.left_recursive():
        # Rare, and much dearer to look for in the grammar than in its terms: so lower first, and again if need be.
        lowering.forget_shared()
        term = _Lowering(engine, vocabulary, builder, limits, rewrite=True).run(grammar)
        builder.solve_rules()
    return term


class _Lowering:
    def __init__(
        self,
        engine: SharedEngine,
        vocabulary: Vocabulary,
        builder: Builder,
        limits: Limits,
        *,
        rewrite: bool = False,
    ) -> None:
        self.rewrite = rewrite
        self.remembered: list[Grammar] = []
        self.engine = engine
        self.vocabulary = vocabulary
        self.builder = builder
        self.limits = limits
        self.terms: dict[_Key, int] = {}
        self.boolean_depth: dict[_Key, int] = {}
        self.held: list[object] = []  # keeps nodes and scopes alive while their ids are keys

    def run(self, grammar: Grammar) -> int:
        root = _Task(grammar, None, (id(grammar), id(None), _Mode.TEXT), _Mode.TEXT)
        stack = [root]
        open_keys: set[_Key] = set()
        terms, maximum = self.terms, self.limits.grammar_nodes
        while stack:
            task = stack[-1]
            if task.key in terms:
                stack.pop()
            elif task.opened:
                terms[task.key] = self.finish(task)
                open_keys.discard(task.key)
                stack.pop()
            else:
                if len(terms) + len(stack) > maximum:
                    raise LimitExceeded("grammar", limit="grammar_nodes", maximum=maximum)
                task.opened = True
                self.open(task)
                open_keys.add(task.key)
                for part in task.pending:
                    if part.key in open_keys:
                        raise GrammarError(
                            "grammar",
                            f"rule {_name_of(task.node)!r} is recursive where the language must be regular",
                            evidence="it is used inside an intersection, a complement or a JSON string value",
                            remedy="write that part without recursion",
                        )
                stack.extend(task.pending)
        return terms[root.key]

    def need(self, task: _Task, node: Grammar, scope: _Scope | None, mode: _Mode) -> None:
        """Make ``node`` a part of ``task``; symbols are made at once."""
        key = (id(node), id(scope), mode)
        task.parts.append(key)
        if key in self.terms:
            return
        if isinstance(node, _SYMBOLS):
            self.terms[key] = self.finish_symbol(node, mode)
        else:
            task.pending.append(_Task(node, scope, key, mode))

    def open(self, task: _Task) -> None:
        """List the parts that a node needs."""
        node, scope, mode = task.node, task.scope, task.mode
        match node:
            case Sequence() | Choice() | Permutation():
                for item in node.children:
                    self.need(task, item, scope, mode)
            case Repeat() | Capture() | Described() | Distinct():
                self.need(task, node.item, scope, mode)
            case Intersection():
                for item in node.items:
                    self.need(task, item, scope, mode or _Mode.REGULAR)
            case Complement():
                self.need(task, node.item, scope, mode or _Mode.REGULAR)
            case JsonString():
                self.need(task, node.value, scope, _Mode.DECODED)
            case Shared():
                if mode or id(node) not in self.engine.lowered:
                    self.need(task, node.item, None, mode)
            case Rules():
                self.open_rules(task, node)
            case Reference():
                self.open_reference(task, node)
            case SpecialToken():
                if mode:
                    raise GrammarError(
                        "grammar",
                        f"special token {node.token!r} is used where the language must be regular text",
                        remedy="keep special tokens out of intersections, complements and JSON strings",
                    )

    def open_rules(self, task: _Task, node: Rules) -> None:
        if self.rewrite and task.scope is None and not task.mode:
            rewritten = remove_left_recursion(node, self.limits)
            if rewritten is not node:
                self.held.append(rewritten)
                if not isinstance(rewritten, Rules):
                    self.need(task, rewritten, None, _Mode.TEXT)
                    return
                node = rewritten
        inner = _Scope(node, task.scope, None if task.mode else self.builder)
        self.held.append(inner)
        task.inner = inner
        self.need(task, node.body, inner, task.mode)
        if not task.mode:
            for body in inner.bodies.values():
                self.need(task, body, inner, _Mode.TEXT)

    def open_reference(self, task: _Task, node: Reference) -> None:
        found = task.scope.find(node.name) if task.scope is not None else None
        if found is None:
            raise GrammarError(
                "grammar",
                f"rule {node.name!r} is not defined",
                remedy="bind it in a Rules node around the reference",
            )
        task.inner = found
        if task.mode:
            self.need(task, found.bodies[node.name], found, task.mode)

    def finish(self, task: _Task) -> int:
        """Make the term of a node whose parts are made."""
        node, build = task.node, self.builder
        parts = [self.terms[part] for part in task.parts]
        self.bound_booleans(task)
        match node:
            case Literal() | ByteClass() | CharClass() | SpecialToken():  # a grammar that is a symbol
                return self.finish_symbol(node, task.mode)
            case Sequence():
                term = build.epsilon()
                for part in reversed(parts):
                    term = build.sequence(part, term)
                return term
            case Choice():
                return build.choice(parts)
            case Repeat():
                if max(node.min, node.max or 0) > _MAX_COUNT:
                    raise LimitExceeded("grammar", limit="repetition count", maximum=_MAX_COUNT)
                return build.repeat(parts[0], node.min, node.max)
            case Permutation():
                return self.finish_permutation(node, parts)
            case Capture() | Described():
                return parts[0]
            case Intersection() | Complement() | JsonString():
                return self.finish_regular(node, parts, task.mode)
            case Shared() | Distinct():
                return self.finish_own_rule(task, node, parts)
            case Rules():
                return self.finish_rules(task)
            case Reference():
                if task.mode or task.inner is None:
                    return parts[0]
                return build.call(task.inner.rules[node.name])
            case _:
                raise GrammarError("grammar", f"unknown node {type(node).__name__}")

    def finish_symbol(self, node: Literal | ByteClass | CharClass | SpecialToken, mode: _Mode) -> int:
        decoded = mode is _Mode.DECODED
        match node:
            case Literal():
                return self.builder.literal(node.data, decoded)
            case ByteClass():
                return self.builder.byte_class(node.ranges, decoded)
            case CharClass():
                return self.builder.char_class(node.ranges, decoded)
            case SpecialToken():
                return self.builder.special(self.special_id(node))

    def finish_permutation(self, node: Permutation, parts: list[int]) -> int:
        if max(node.min, node.max or 0) > _MAX_COUNT:
            raise LimitExceeded("grammar", limit="number of members", maximum=_MAX_COUNT)
        *items, rest, separator = parts
        required = len(node.required)
        flagged = [(item, index < required) for index, item in enumerate(items)]
        return self.builder.permutation(separator, rest, flagged, node.min, node.max)

    def finish_regular(self, node: Intersection | Complement | JsonString, parts: list[int], mode: _Mode) -> int:
        build = self.builder
        match node:
            case Intersection():
                return build.conjunction(parts or [self.any_text(mode)])
            case Complement():
                return build.conjunction([self.any_text(mode), build.negation(parts[0])])
            case JsonString():
                quote = build.literal(b'"')
                return build.sequence(quote, build.sequence(build.json(parts[0]), quote))

    def finish_shared(self, task: _Task, node: Shared, parts: list[int]) -> int:
        if task.mode:
            return parts[0]
        held = self.engine.lowered.get(id(node))
        if held is not None:
            return held[1]
        rule = self.engine.rules.get(parts[0])
        if rule is None:
            rule = self.builder.add_rule("")
            self.builder.set_rule(rule, parts[0])
            self.engine.rules[parts[0]] = rule
        term = self.builder.call(rule)
        self.engine.remember(node, term)
        self.remembered.append(node)
        return term

    def finish_own_rule(self, task: _Task, node: Shared | Distinct, parts: list[int]) -> int:
        if isinstance(node, Shared):
            return self.finish_shared(task, node, parts)
        return self.finish_distinct(node, parts[0], task.mode)

    def finish_distinct(self, node: Distinct, item: int, mode: _Mode) -> int:
        if mode:
            raise GrammarError(
                "grammar",
                "a distinct term is used where the language must be regular",
                remedy="keep arrays and objects without repetition out of intersections and complements",
            )
        if self.builder.distance(item) == 0:
            raise GrammarError(
                "grammar",
                "the item of a distinct term may be empty",
                remedy="let every member be one JSON array or object",
            )
        key = item, node.is_spare
        rule = self.engine.distinct_rules.get(key)
        if rule is None:
            rule = self.builder.add_rule("")
            self.builder.set_rule(rule, item)
            self.builder.set_scope(rule, node.is_spare)
            self.engine.distinct_rules[key] = rule
        return self.builder.call(rule)

    def forget_shared(self) -> None:
        """Undo what this lowering has kept of shared nodes."""
        for node in self.remembered:
            self.engine.lowered.pop(id(node), None)

    def finish_rules(self, task: _Task) -> int:
        body = self.terms[task.parts[0]]
        if task.inner is not None and not task.mode:
            for (name, _), part in zip(task.inner.bodies.items(), task.parts[1:], strict=True):
                self.builder.set_rule(task.inner.rules[name], self.terms[part])
        return body

    def any_text(self, mode: _Mode) -> int:
        return self.builder.repeat(self.builder.char_class(ANY_TEXT.ranges, mode is _Mode.DECODED), 0, None)

    def special_id(self, node: SpecialToken) -> int:
        token = self.vocabulary.token_id(node.token) if isinstance(node.token, str) else node.token
        if token in self.vocabulary.eos:
            raise GrammarError(
                "grammar",
                f"special token {node.token!r} is an EOS token of the vocabulary",
                remedy="EOS is allowed wherever the grammar may end; leave it out of the grammar",
            )
        if token not in self.vocabulary.special:
            raise GrammarError(
                "grammar",
                f"token {node.token!r} is no special token of the vocabulary",
                remedy="write ordinary text as text",
            )
        return token

    def bound_booleans(self, task: _Task) -> None:
        """Keep boolean operators from nesting deeper than the engine's stack allows."""
        if not self.boolean_depth and not isinstance(task.node, _REGULAR_ONLY):
            return
        depth = max((self.boolean_depth.get(part, 0) for part in task.parts), default=0)
        if isinstance(task.node, _REGULAR_ONLY):
            depth += 1
            if depth > _MAX_BOOLEAN_NESTING:
                raise LimitExceeded("grammar", limit="boolean nesting", maximum=_MAX_BOOLEAN_NESTING)
        if depth:
            self.boolean_depth[task.key] = depth


def _name_of(node: Grammar) -> str:
    return node.name if isinstance(node, Reference) else type(node).__name__


if not isinstance(ANY_CHAR, CharClass):
    raise TypeError("ANY_CHAR must be a CharClass")
ANY_TEXT: Final[CharClass] = ANY_CHAR
