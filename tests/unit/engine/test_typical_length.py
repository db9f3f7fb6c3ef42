"""The expected length of a random derivation."""

from __future__ import annotations

import math
import random

import pytest

from structgen.engine.report import typical_length
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar, Permutation, Reference, Rules, choice, literal, sequence
from structgen.grammar.reader import parse


def _derive(term: Grammar, rules: dict[str, Grammar], chance: random.Random) -> int:
    """The length of one derivation, by the definition."""
    match term:
        case ir.Literal():
            return len(term.data)
        case ir.CharClass():
            return 1
        case ir.Sequence():
            return sum(_derive(item, rules, chance) for item in term.items)
        case ir.Choice():
            return _derive(chance.choice(term.items), rules, chance)
        case ir.Repeat():
            count = term.min
            while (term.max is None or count < term.max) and chance.random() < 0.5:
                count += 1
            return sum(_derive(term.item, rules, chance) for _ in range(count))
        case ir.Reference():
            return _derive(rules[term.name], rules, chance)
        case ir.Rules():
            return _derive(term.body, dict(term.rules), chance)
    raise AssertionError(term)


@pytest.mark.parametrize(
    "text",
    [
        '"abc" | "d"',
        '[a-z]{2,5} "é"?',
        '("a" "b"*)+',
        'rules { s = "(" s ")" | "x" | "yy" } in s s',
        'rules { a = "x" b?; b = "y" a{0,1} | "zz" } in a',
    ],
)
def test_it_is_the_mean_of_random_derivations(text: str) -> None:
    """It is the mean length of derivations at random, as the definition says."""
    term = parse(text.replace("é", "e"))
    chance = random.Random(1)
    lengths = [_derive(term, {}, chance) for _ in range(40_000)]
    mean = sum(lengths) / len(lengths)
    deviation = math.sqrt(sum((length - mean) ** 2 for length in lengths) / len(lengths) / len(lengths))
    assert abs(typical_length(term) - mean) < 5 * deviation + 1e-9


def test_it_is_infinite_where_recursion_branches_too_much() -> None:
    """A rule that leads to itself once or more on average has no finite mean."""
    branching = Rules({"s": choice(sequence(Reference("s"), Reference("s")), "x")}, Reference("s"))
    assert math.isinf(typical_length(branching))
    assert math.isinf(typical_length(sequence("a", branching)))
    thin = Rules({"s": choice(sequence(Reference("s"), Reference("s")), "x", "y")}, Reference("s"))
    assert typical_length(thin) == pytest.approx((2 / 3) / (1 - 2 / 3))


def test_alternatives_that_cannot_end_do_not_count() -> None:
    """Only alternatives with strings are chosen from."""
    grammar = Rules({"loop": sequence("x", Reference("loop"))}, choice("abc", Reference("loop"), ir.EMPTY))
    assert typical_length(grammar) == 3


def test_other_terms() -> None:
    """Permutations, quoted strings, intersections and complements count as documented."""
    assert typical_length(Permutation([literal("aa")], [literal("bbbb")], None, literal(","))) == pytest.approx(
        2 + 2 + 0.5
    )
    assert typical_length(ir.JsonString(regex("abc"))) == 5
    assert typical_length(regex("ab") & ~regex("x")) == 2
    assert typical_length(sequence("a", ir.SpecialToken("<x>"))) == 2


def test_many_rules_are_solved_by_iteration() -> None:
    """A large set of rules that refer to each other gives the result of a small one."""
    count = 1_000
    rules = {f"r{i}": choice("ab", sequence("x", Reference(f"r{(i + 1) % count}"))) for i in range(count)}
    assert typical_length(Rules(rules, Reference("r0"))) == pytest.approx(3)


def test_real_descriptions() -> None:
    """A front end's description has a typical length between its shortest and its longest string."""
    date = lark('start: /[0-9]{4}/ "-" /[0-9]{2}/')
    assert typical_length(date) == 7
    schema = json_schema(
        {"type": "object", "properties": {"a": {"enum": ["xy"]}}, "required": ["a"], "additionalProperties": False}
    )
    assert typical_length(schema) >= len('{"a":"xy"}')
