"""Grammars written in other notations, with a report of the losses; ``docs/reference/conversion.md`` has the table.

Reading order: ``lowering`` (with ``automaton``), ``layout``, ``rule_spelling``, and JSON Schema, which is written here.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeAlias, get_args

from structgen.frontends.convert.layout import SHORT_COUNTS, Loss, LossLog, Treatment, Written, written_rules
from structgen.frontends.convert.lowering import Abilities, lowered
from structgen.frontends.convert.rule_spelling import (
    BnfSpelling,
    LarkSpelling,
    bracketed,
    is_ebnf_token,
    is_gbnf_token,
    is_llguidance_token,
    with_prefix_free_terminals,
)
from structgen.frontends.json_schema.report import LazyDescription
from structgen.frontends.structural_tag import TagDescription
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import inverse_of
from structgen.grammar.nodes import Grammar, Reference, Rules
from structgen.grammar.nodes.description import Described
from structgen.grammar.visitor import RecursiveTerm, fold

__all__ = ["DIALECTS", "Dialect", "Loss", "Treatment", "Written", "write"]

Dialect: TypeAlias = Literal["gbnf", "ebnf", "lark", "llguidance", "json-schema", "structural_tag"]
"""A notation that grammars are written in."""

DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)

_ABILITIES: Final = {
    "gbnf": Abilities(is_gbnf_token, has_left_recursion=False, max_count=1_000),
    "ebnf": Abilities(is_ebnf_token),
    "lark": Abilities(lambda node: False),
    "llguidance": Abilities(is_llguidance_token),
    "structural_tag": Abilities(is_ebnf_token),
}


def write(grammar: Grammar, dialect: Dialect, *, superset: bool = False) -> Written:
    r"""Write a grammar in another notation.

    The language stays the same: operators that the notation lacks are expressed by others, or refused by name.
      Annotations that it lacks are dropped and reported.

    Args:
        grammar: a closed term.
        dialect: ``"gbnf"`` (llama.cpp), ``"ebnf"`` (xgrammar), ``"lark"``, ``"llguidance"`` (its dialect of Lark),
            ``"json-schema"`` or ``"structural_tag"`` (the tag or schema that the grammar was made from, or EBNF in one
            format).
        superset: drop and report restrictions that cannot be expressed, instead of refusing.

    Raises:
        UnsupportedFeature: a part cannot be expressed.
        UnsatisfiableGrammar: the grammar matches no string.
        GrammarError: a reference has no rule.
        LimitExceeded: the result is too large.
        ValueError: there is no such dialect.

    Complexity: linear, except for intersections and complements, which become automata of up to 400 states each.

    >>> from structgen.frontends.regex import regex
    >>> written = write(regex("(?P<year>[0-9]{4})-[0-9]{2}"), "gbnf")
    >>> print(written.text, end="")
    root ::= [0-9]{4,4} "-" [0-9]{2,2}
    >>> print(*written.losses)
    Capture 'year': dropped
    """
    if dialect not in DIALECTS:
        raise ValueError(f"write: there is no dialect {dialect!r}; give one of {', '.join(DIALECTS)}")
    log = LossLog(dialect, superset=superset)
    if dialect == "json-schema":
        return Written(_json_schema_of(grammar, log), log.losses)
    if dialect == "structural_tag":
        return Written(_structural_tag_of(grammar, log), log.losses)
    flat = lowered(grammar, _ABILITIES[dialect], log)
    if dialect in ("gbnf", "ebnf"):
        text = written_rules(flat, BnfSpelling(log, is_ebnf=dialect == "ebnf"), log)
    else:
        text = written_rules(with_prefix_free_terminals(flat) if dialect == "llguidance" else flat, LarkSpelling(), log)
    return Written(text, log.losses)


_MAX_LENGTH: Final = 20_000
_SPECIAL: Final = frozenset(r"\^$.*+?()[]{}|/")
_IN_CLASS: Final = frozenset(r"\]^-[")


def _pattern_of(flat: Rules, log: LossLog) -> str:
    """The regular expression for flat rules, anchored at both ends.

    Raises:
        UnsupportedFeature: a rule is recursive, or the expression would be longer than 20,000 characters.
    """
    rules = dict(flat.rules)

    def below(node: Grammar) -> tuple[Grammar, ...]:
        return (rules[node.name],) if isinstance(node, Reference) else node.children

    def spelled(node: Grammar, parts: list[tuple[str, int]]) -> tuple[str, int]:
        text, level = _spelled(node, parts)
        if len(text) > _MAX_LENGTH:
            raise log.refused(type(node).__name__, "", f"the pattern would be longer than {_MAX_LENGTH} characters")
        return text, level

    try:
        return f"^(?:{fold(flat.body, spelled, below=below)[0]})$"
    except RecursiveTerm:
        raise log.refused("Rules", "", "a rule is recursive, so there is no regular expression") from None


def _spelled(node: Grammar, parts: list[tuple[str, int]]) -> tuple[str, int]:
    """The text, and its level: 0 for alternatives, 1 for a sequence, 2 for a repetition, 3 for an atom."""
    match node:
        case ir.Literal(data=data):
            text = data.decode()
            return "".join(_character(character, _SPECIAL) for character in text), 3 if len(text) == 1 else 1
        case ir.CharClass():
            return _class(node), 3
        case ir.Sequence():
            return "".join(_grouped(part, 1) for part in parts), 1
        case ir.Choice():
            return "|".join(text for text, _ in parts), 0
        case ir.Repeat(min=min_count, max=max_count):
            short = SHORT_COUNTS.get((min_count, max_count))
            if short is None:
                upper = "" if max_count is None else str(max_count)
                short = f"{{{min_count}}}" if min_count == max_count else f"{{{min_count},{upper}}}"
            return _grouped(parts[0], 3) + short, 2
        case Reference():
            return parts[0]
    raise TypeError(f"{type(node).__name__} is no operator of regular expressions")


def _grouped(part: tuple[str, int], level: int) -> str:
    return part[0] if part[1] >= level else f"(?:{part[0]})"


def _class(node: ir.CharClass) -> str:
    if not inverse_of(node.ranges):
        return r"[\s\S]"
    return bracketed(node.ranges, lambda character: _character(character, _IN_CLASS))


def _character(character: str, special: frozenset[str]) -> str:
    if character in special:
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}"


_NO_TOKENS: Final = Abilities(lambda node: False)


def _json_schema_of(grammar: Grammar, log: LossLog) -> str:
    """Write a grammar as a JSON Schema.

    A grammar of JSON texts becomes a schema of their values; any other grammar a schema of JSON strings.

    Raises:
        UnsupportedFeature: the grammar is neither regular nor made from a schema.
    """
    node = grammar
    while isinstance(node, (Described, ir.Capture, ir.Tempered, ir.Shared)):
        if isinstance(node, Described) and isinstance(node.description, LazyDescription):
            return _given(node.description, log)
        if isinstance(node, (ir.Capture, ir.Tempered)):
            log.note(type(node).__name__, "", Treatment.DROPPED)
        node = node.children[0]
    if isinstance(node, ir.JsonString):
        schema = _texts(node.value, log)
    else:
        schema = _texts(node, log)
        log.note("text", "", Treatment.DROPPED, "becomes the value of a JSON string: quotes and escapes are added")
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


def _structural_tag_of(grammar: Grammar, log: LossLog) -> str:
    """Write a grammar as a structural tag.

    A grammar made from a tag becomes that tag, one from a schema a ``json_schema``, and any other one a ``grammar``.

    Raises:
        UnsupportedFeature: a part of such another one has no EBNF.
    """
    node = grammar
    while isinstance(node, (Described, ir.Capture, ir.Tempered, ir.Shared)):
        if isinstance(node, Described):
            if isinstance(node.description, TagDescription) and (text := node.description.text()) is not None:
                if '"json_schema"' in text or '"structures"' in text:
                    log.note("policy", "", Treatment.DROPPED, "a tag says little of how JSON values are written")
                return text if text.endswith("\n") else text + "\n"
            if isinstance(node.description, LazyDescription) and node.description.schema is not None:
                return _tag({"type": "json_schema", "json_schema": json.loads(_given(node.description, log))})
        else:
            log.note(type(node).__name__, "", Treatment.DROPPED)
        node = node.children[0]
    flat = lowered(grammar, _ABILITIES["structural_tag"], log)
    return _tag({"type": "grammar", "grammar": written_rules(flat, BnfSpelling(log, is_ebnf=True), log)})


def _tag(found: dict[str, Any]) -> str:
    return json.dumps({"type": "structural_tag", "format": found}, ensure_ascii=False, indent=2) + "\n"


def _given(description: LazyDescription, log: LossLog) -> str:
    schema = description.schema
    if schema is None:
        raise log.refused("json schema", "", "it depends on documents or formats given beside it")
    log.note(
        "policy", "", Treatment.DROPPED, "a schema does not define how values are written, nor a depth for all values"
    )
    if isinstance(schema, (bytes, bytearray)):
        schema = bytes(schema).decode("utf-8-sig")
    if isinstance(schema, str):
        return schema if schema.endswith("\n") else schema + "\n"
    try:
        return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"
    except TypeError as error:
        raise log.refused("json schema", "", f"it contains a value that JSON does not have: {error}") from None


def _texts(term: Grammar, log: LossLog) -> dict[str, Any]:
    """A schema of the strings of a regular term; outermost ``&`` and ``~`` become keywords."""
    while isinstance(term, (Described, ir.Shared)):
        term = term.children[0]
    if isinstance(term, ir.Intersection) and term.items:
        parts = [_texts(item, log) for item in term.items]
        return {"type": "string", "allOf": [{key: part[key] for key in part if key != "type"} for part in parts]}
    if isinstance(term, ir.Complement):
        inner = _texts(term.item, log)
        return {"type": "string", "not": {key: inner[key] for key in inner if key != "type"}}
    return {"type": "string", "pattern": _pattern_of(lowered(term, _NO_TOKENS, log), log)}
