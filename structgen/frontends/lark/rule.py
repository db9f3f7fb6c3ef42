"""Rules: expressions with ignored text allowed after every terminal, and templates."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from structgen.errors import LimitExceeded
from structgen.frontends.free_text import shortest
from structgen.frontends.indentation.marks import Indentation, NotBefore
from structgen.frontends.lark.commitment import Unclear, committed
from structgen.frontends.lark.definition import Definition, Module, NodeBudget, bounds_of, module_of
from structgen.frontends.lark.library import Library
from structgen.frontends.lark.llguidance import (
    Attributes,
    before_stop,
    part_of_text,
    schema_of,
    special_of,
    with_suffix,
)
from structgen.frontends.lark.parameter import ParameterReader, RuleArgument, RuleInstance
from structgen.frontends.lark.syntax import Node, Token, fold, span_of, tokens_of
from structgen.frontends.lark.terminal import Surroundings, Terminals, is_regular
from structgen.grammar.algebra import either, joined
from structgen.grammar.nodes import EMPTY, EPSILON, Grammar, Reference, Repeat, Rules, postorder
from structgen.grammar.scopes import used_rules

__all__ = ["RuleBuilder", "built"]

_STRUCTURED: Final = frozenset({"SPECIAL", "GRAMMAR", "JSON", "STRUCTURED"})
_SINGLE: Final = frozenset({"expansion", "expansions"})
"""Nodes that equal their only part."""
_LEXEME_COST: Final = 10
_MAX_NESTED_GRAMMARS: Final = 16
"""Grammars nested in each other; building one inside another recurses."""

# Nodes that an instance of a template counts as, so that endless instantiation reaches the limit early.
_INSTANCE_COST: Final = 100


def built(  # noqa: PLR0913  # what a builder takes
    library: Library,
    start: Definition,
    budget: NodeBudget,
    *,
    is_marked: bool = False,
    indentation: Indentation | None = None,
    grammars: Mapping[str, Grammar] | None = None,
    depth: int = 0,
) -> tuple[RuleBuilder, dict[str, Grammar], Grammar]:
    """Return the builder of a grammar, its rules, and the body; arguments and errors as for ``RuleBuilder``.

    What lazy lexemes commit to is in the rules.
    """

    def made(*, has_lexemes: bool) -> tuple[RuleBuilder, Grammar]:
        builder = RuleBuilder(
            library, budget, is_marked=is_marked, indentation=indentation, grammars=grammars, has_lexemes=has_lexemes
        )
        builder._depth = depth
        return builder, builder.build(start)

    builder, body = made(has_lexemes=False)
    if not builder.has_lazy:  # known only after building
        return builder, builder.rules, body
    builder, body = made(has_lexemes=True)
    try:
        rules, body = committed(builder.rules, body, library.main.source.subject, has_marks=is_marked)
    except Unclear as error:
        owner = builder.definitions[error.owner]
        raise owner.module.source.refused(
            owner.position, "lazy lexeme", f"it is not clear what lazy rule {error.owner!r} cuts: {error.reason}",
            error.remedy,
        ) from None  # fmt: skip
    return builder, rules, body


class RuleBuilder:
    """Builds the terms of all rules that are referred to.

    Attributes:
        rules: terms by the name of the rule or terminal.
        definitions: the definitions of ``rules``.
        terminals: the terms of the terminals.
        surroundings: the ignored text and marks around the terminals.
        has_lazy: whether a lexeme built so far ends where it first can.
    """

    def __init__(
        self,
        library: Library,
        budget: NodeBudget,
        *,
        is_marked: bool = False,
        indentation: Indentation | None = None,
        grammars: Mapping[str, Grammar] | None = None,
        has_lexemes: bool = False,
    ) -> None:
        """Make a builder; ``grammars`` are those that ``@name`` refers to.

        With ``is_marked`` marks (``structgen.frontends.indentation.marks``) are put where text is ignored, with
        ``indentation`` for lines and blocks too. With ``has_lexemes`` lexemes are marked (``commitment``).
        """
        self.rules: dict[str, Grammar] = {}
        self.definitions: dict[str, Definition] = {}
        self.terminals = Terminals(library, budget)
        self.surroundings = Surroundings(
            library, self.terminals, indentation, is_marked=is_marked, has_lexemes=has_lexemes
        )
        self.has_lazy = False
        self._library = library
        self._budget = budget
        self._grammars = grammars or {}
        self._waiting: deque[tuple[str, RuleInstance]] = deque()
        self._references: dict[str, RuleArgument] = {}
        self._depth = 0  # of nested grammars
        # By the id of the token or node, to which it refers too so that the id is not reused.
        self._made: dict[int, tuple[object, Grammar]] = {}
        self._spelled: dict[str, RuleArgument] = {}
        self._parameters = ParameterReader()

    def build(self, start: Definition) -> Grammar:
        """Return the body of the grammar: ``start`` with ignored text before it.

        Raises:
            GrammarSyntaxError: a name is not defined or not allowed at its position, or a part is malformed.
            UnsupportedFeature: a construct is not supported; the error names it.
            LimitExceeded: the grammar has too many nodes, or templates are nested too deeply.
        """
        if start.has_parameter:
            raise start.module.source.syntax_error(
                start.span,
                f"the start rule {start.name!r} is used without its parameter",
                f"start at another rule, as in main: {start.name}::0",
            )
        body = self._reference(start, {}, 0).term
        main = self._library.main
        for name in main.definitions:  # errors in unused definitions are errors too
            definition = self._library.find(main, name)
            if definition is not None and not definition.parameters and not definition.has_parameter:
                self._reference(definition, {}, 0)
        while self._waiting:
            name, use = self._waiting.popleft()
            self.definitions[name] = use.definition
            if use.definition.is_terminal:
                self.rules[name] = self.terminals.term(use.definition)
            else:
                self.rules[name] = self._body(use)
        return joined([self.surroundings.before, body])

    def _body(self, use: RuleInstance) -> Grammar:
        """Return the term of a rule, with its extensions."""
        definition = use.definition
        terms = [self._alternatives(use)]
        for further in definition.further:
            arguments = dict(zip(further.parameters, use.arguments.values(), strict=True))
            terms.append(self._alternatives(use._replace(definition=further, arguments=arguments)))
        return terms[0] if len(terms) == 1 else either(terms)

    def _alternatives(self, use: RuleInstance) -> Grammar:
        definition = use.definition
        attributes = definition.attributes
        is_dropped = partial(self._is_dropped, use) if definition.has_parameter else None
        if attributes is None or not (
            attributes.needs_terminal or (attributes.prefers_terminal and is_regular(definition.tree))
        ):
            if attributes is not None and attributes.max_chars is not None:
                raise definition.module.source.refused(
                    attributes.places["max_chars"].start_pos or 0, "max_chars",
                    "the characters of a rule with other rules in it are not counted",
                    "write its body as a terminal, or give max_tokens",
                )  # fmt: skip
            value = fold(definition.tree, partial(self._leaf, use), partial(self._node, use), is_dropped)
            term = self._plain(use, value)
            return term if attributes is None else attributes.around(term)
        body = self.terminals.expression(definition.module, definition.tree)
        return self.surroundings.after(self._lexeme(definition, attributes, body))

    def _lexeme(self, definition: Definition, attributes: Attributes, body: Grammar) -> Grammar:
        """Return the term of a rule that is one terminal."""
        module, owner = definition.module, definition.name
        lexeme = self.surroundings.lexeme
        self.has_lazy = self.has_lazy or attributes.needs_terminal
        suffix = None if attributes.suffix is None else self.terminals.value(module, attributes.suffix)
        stop = None if attributes.stop is None else self.terminals.value(module, attributes.stop)
        parts = [part for part in (body, suffix, stop) if part is not None]
        if self.terminals.has_guards and any(isinstance(node, NotBefore) for part in parts for node in postorder(part)):
            first = next(iter(attributes.places.values()))
            raise module.source.refused(
                first.start_pos or 0, str(first), "the rule looks at the text after it (\\b)",
                "remove the boundary or the attribute",
            )  # fmt: skip
        self._budget.charge(_LEXEME_COST, module.source.subject)
        if suffix is not None:
            term = with_suffix(body, suffix, attributes.capture, attributes.stop_capture)
            return attributes.bounded(lexeme(term, attributes.matching(joined([body, suffix])), owner=owner))
        if stop is not None:
            before = before_stop(body, stop)
            if before is None:
                raise module.source.refused(
                    attributes.places["stop"].start_pos or 0, "stop",
                    "a stop with many strings of several lengths cannot be excluded from the output exactly",
                    "write suffix= in place of stop= to keep it in the output, or give one string or a character class",
                )  # fmt: skip
            return attributes.around(
                lexeme(before, joined([attributes.matching(body), stop]), is_stop=True, owner=owner)
            )
        if attributes.is_lazy:
            return attributes.around(lexeme(shortest(body), attributes.matching(body), owner=owner))
        return attributes.around(lexeme(body))

    def _is_dropped(self, use: RuleInstance, tree: Node) -> bool:
        """Return whether an alternative is dropped because its condition is false for the parameter."""
        if tree.data != "conditional":
            return False
        holds = self._parameters.condition(use.definition.module.source, cast("Token", tree.children[1]))
        return not holds(use.parameter or 0)

    def _plain(self, use: RuleInstance, value: RuleArgument) -> Grammar:
        """Return the term of a value.

        Raises:
            GrammarSyntaxError: the value is a template without arguments.
        """
        if value.template is not None and value.token is not None:
            raise use.definition.module.source.syntax_error(
                span_of(value.token),
                f"template {str(value.token)!r} is used without arguments",
                f"it takes {len(value.template.parameters)}: {value.token}{{...}}",
            )
        return value.term

    def _reference(
        self, definition: Definition, arguments: Mapping[str, RuleArgument], depth: int, parameter: int | None = None
    ) -> RuleArgument:
        name = self._library.name_of(definition)
        if parameter is not None:
            name += f"::{parameter}"
        if arguments:
            name += f"{{{','.join(value.name for value in arguments.values())}}}"
        if name not in self._references:
            if arguments or parameter is not None:
                self._budget.charge(_INSTANCE_COST + len(name), definition.module.source.subject)
            self._waiting.append((name, RuleInstance(definition, arguments, depth, parameter)))
            self._references[name] = RuleArgument(self._referred(name, definition), name)
        return self._references[name]

    def _referred(self, name: str, definition: Definition) -> Grammar:
        if not definition.is_terminal:
            return Reference(name)
        if name in self.surroundings.marks:
            return self.surroundings.marks[name]
        text = self.terminals.term(definition) if self.surroundings.brackets else EPSILON
        return self.surroundings.followed(Reference(name), text)

    def _leaf(self, use: RuleInstance, token: Token) -> RuleArgument:
        module = use.definition.module
        self._budget.charge(2, module.source.subject)
        if token.type in {"STRING", "REGEXP"}:
            key = str(token) if module.options is None else f"%{token}"  # llguidance's rules differ
            if key not in self._spelled:
                term = self.terminals.spelled(module, token)
                self._spelled[key] = RuleArgument(self.surroundings.followed(term, term), str(token))
            return self._spelled[key]
        if token in use.arguments:
            return use.arguments[token]
        if token in module.declared and token in self.surroundings.marks:
            return RuleArgument(self.surroundings.marks[token], str(token))
        if token.type in _STRUCTURED:
            around = self.surroundings.followed if token.type == "STRUCTURED" else self.surroundings.after
            return RuleArgument(around(self._structured(module, token)), str(token))
        definition = self._find(module, token)
        if definition.parameters:
            return RuleArgument(EMPTY, self._library.name_of(definition), definition, token)
        if definition.has_parameter:
            raise module.source.syntax_error(
                span_of(token), f"rule {str(token)!r} is used without its parameter", f"write {token}::0, or {token}::_"
            )
        return self._reference(definition, {}, 0)

    def _structured(self, module: Module, token: Token) -> Grammar:
        source = module.source
        key = id(token)
        if key in self._made:
            return self._made[key][1]
        match token.type:
            case "SPECIAL":
                term = special_of(source, token)
            case "STRUCTURED":
                term = part_of_text(source, token)
            case "JSON":
                term = schema_of(source, token, self._budget.limits)
            case _:
                name = str(token)[1:]
                if name not in self._grammars:
                    given = ", ".join(map(repr, self._grammars)) or "none"
                    raise source.syntax_error(
                        span_of(token),
                        f"there is no grammar called {name!r}",
                        f"pass grammars={{{name!r}: ...}}; given: {given}",
                    )
                term = self._grammars[name]
        self._made[key] = token, term
        return term

    def _nested(self, module: Module, tree: Node) -> Grammar:
        key = id(tree)
        if key not in self._made:
            keyword = cast("Token", tree.children[0])
            start = keyword.start_pos or 0
            if self._depth >= _MAX_NESTED_GRAMMARS:
                raise LimitExceeded(
                    module.source.subject_at(start), limit="nested grammars", maximum=_MAX_NESTED_GRAMMARS,
                    remedy="write the inner grammars as rules of one",
                )  # fmt: skip
            inner = module_of(module.source, tree.children[1:])
            library = Library(inner, self._budget.limits)
            definition = library.find(inner, "start")
            if definition is None or definition.is_terminal or definition.parameters:
                raise module.source.syntax_error(
                    span_of(keyword), "the nested grammar has no rule 'start'", "define it: start: ..."
                )
            builder, rules, body = built(
                library, definition, self._budget, grammars=self._grammars, depth=self._depth + 1
            )
            if builder.terminals.has_guards:
                raise module.source.refused(
                    start, "nested grammar", "a nested grammar cannot look at the end of a word (\\b)",
                    "write it as rules of the outer grammar",
                )  # fmt: skip
            if start not in module.nested:
                module.nested.add(start)
                module.entries.extend(inner.entries)
            self._made[key] = tree, Rules(used_rules(rules, body), body)
        return self._made[key][1]

    def _find(self, module: Module, token: Token) -> Definition:
        definition = self._library.find(module, token)
        if definition is None and token in module.declared:
            raise module.source.refused(
                token.start_pos or 0, "%declare", f"declared terminal {str(token)!r} is not defined",
                "define it; or if it begins or ends a block, pass indentation=Indentation(...) with its name",
            )  # fmt: skip
        if definition is None:
            kind = "terminal" if token.type == "TERMINAL" else "rule"
            raise module.source.syntax_error(
                span_of(token), f"{kind} {str(token)!r} is not defined", f"define it ({token}: ...) or import it"
            )
        return definition

    def _node(self, use: RuleInstance, tree: Node, parts: list[RuleArgument]) -> RuleArgument:
        module = use.definition.module
        self._budget.charge(1 + len(parts), module.source.subject)
        if tree.data != "template" and (len(parts) > 1 or tree.data not in _SINGLE):
            for part in parts:
                self._plain(use, part)
        match tree.data:
            case "expansion":
                return parts[0] if len(parts) == 1 else RuleArgument(joined(part.term for part in parts))
            case "expansions":
                return parts[0] if len(parts) == 1 else RuleArgument(either(part.term for part in parts))
            case "alias":
                return parts[0]
            case "maybe":
                return RuleArgument(Repeat(parts[0].term, 0, 1))
            case "repeat" | "times" | "counted":
                return RuleArgument(Repeat(parts[0].term, *bounds_of(module, tree)))
            case "range":
                term = self.terminals.range(module, tree)
                return RuleArgument(self.surroundings.followed(term), "..".join(map(str, tree.children)))
            case "template":
                return self._instance(use, tree, parts)
            case _:
                return self._dialect_node(use, tree, parts)

    def _dialect_node(self, use: RuleInstance, tree: Node, parts: list[RuleArgument]) -> RuleArgument:
        """Return the value of a construct that llguidance adds to Lark."""
        module = use.definition.module
        match tree.data:
            case "conditional":
                if not use.definition.has_parameter:
                    raise module.source.syntax_error(
                        span_of(cast("Token", tree.children[1])), "a condition in a rule without a parameter",
                        f"write ::_ after the name of rule {use.definition.name!r}",
                    )  # fmt: skip
                return parts[0] if parts else RuleArgument(EMPTY)
            case "parametrised":
                return self._with_parameter(use, tree)
            case "nested":
                return RuleArgument(self.surroundings.after(self._nested(module, tree)))
            case "negation":
                return RuleArgument(self.surroundings.followed(self.terminals.expression(module, tree)))
            case _:  # a conjunction
                token = next(tokens_of(tree), None)
                raise module.source.syntax_error(
                    (0, 1) if token is None else span_of(token), "'&' in a rule, which need not be regular",
                    "write its operands as a terminal, in upper case",
                )  # fmt: skip

    def _with_parameter(self, use: RuleInstance, tree: Node) -> RuleArgument:
        """Return the instance of a rule for the number after ``::``."""
        module = use.definition.module
        name, token = (cast("Token", child) for child in tree.children)
        definition = self._find(module, name)
        if not definition.has_parameter:
            raise module.source.syntax_error(
                span_of(name), f"rule {str(name)!r} has no parameter", f"write {name}::_ : ... where it is defined"
            )
        value = self._parameters.expression(module.source, token)
        return self._reference(definition, {}, 0, value(use.parameter))

    def _instance(self, use: RuleInstance, tree: Node, parts: list[RuleArgument]) -> RuleArgument:
        module = use.definition.module
        token = tree.children[0]
        if not isinstance(token, Token):
            raise TypeError("the name of a template is not a token")
        if token in use.arguments:
            given = use.arguments[token]
            if given.template is None:
                raise module.source.syntax_error(
                    span_of(token), f"parameter {str(token)!r} is used as a template, but {given.name} is not one",
                    "pass the name of a template",
                )  # fmt: skip
            definition = given.template
        else:
            definition = self._find(module, token)
        if len(definition.parameters) != len(parts):
            raise module.source.syntax_error(
                span_of(token), f"{str(token)!r} takes {len(definition.parameters)} arguments, given {len(parts)}"
            )
        limits = self._budget.limits
        if use.depth >= limits.nesting:
            raise LimitExceeded(
                module.source.subject_at(token.start_pos or 0),
                limit="nesting",
                maximum=limits.nesting,
                evidence=f"template {str(token)!r} keeps using itself with new arguments",
            )
        return self._reference(definition, dict(zip(definition.parameters, parts, strict=True)), use.depth + 1)
