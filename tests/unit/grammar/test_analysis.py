"""Scopes and properties of terms, against plain definitions by brute force."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from machine_load import at_most

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.analysis import (
    Nullability,
    free_references,
    is_regular,
    productive_rules,
    resolve,
    strongly_connected,
    unending_rules,
)
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    EMPTY,
    EPSILON,
    ByteClass,
    Choice,
    Complement,
    Grammar,
    Literal,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    literal,
    postorder,
    sequence,
)
from structgen.grammar.reader import parse
from structgen.testing.small_scope import language

# Scopes


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("a", ("a",)),
        ('"a" | b c b', ("b", "c")),
        ("rules { a = a b } in a", ("b",)),
        ("rules { a = rules { b = a } in b c } in b", ("b", "c")),
        ("(rules { a = b } in a) a", ("a", "b")),
        ("rules { a = shared(a) } in a", ("a",)),
        ("rules { a = shared(rules { b = shared(b) a } in b) } in a", ("a", "b")),
        ('rules { a = "x" } in shared(rules { a = "y" } in a)', ()),
    ],
)
def test_free_references(text: str, free: tuple[str, ...]) -> None:
    """A name is bound by the innermost rules around it, and a shared term is its own scope."""
    assert free_references(parse(text)) == free


def test_free_references_are_named_in_the_error() -> None:
    """The message lists them, at most eight."""
    with pytest.raises(GrammarError, match="and 3 more"):
        resolve(Sequence([Reference(f"r{index}") for index in range(11)]))
    with pytest.raises(GrammarError, match="no rule is called 'missing'"):
        resolve(parse("rules { a = missing } in a"))


def test_a_flat_grammar_is_returned_as_it_is() -> None:
    """Resolving makes no copy where there is nothing to resolve."""
    flat = parse('rules { a = "x" b; b = a? } in a')
    assert resolve(flat) is flat
    term = parse('"x" "y"')
    assert resolve(term) == Rules((), term)


@pytest.mark.parametrize(
    ("text", "flat"),
    [
        ('(rules { a = "x" } in a) (rules { a = "y" } in a)', 'rules { a = "x"; a.2 = "y" } in a a.2'),
        ('rules { a = "x" (rules { a = "y" a? } in a) } in a', 'rules { a = "x" a.2; a.2 = "y" a.2? } in a'),
        ('rules { a = "x"; b = rules { c = a b? } in c } in b', 'rules { a = "x"; b = c; c = a b? } in b'),
    ],
)
def test_nested_scopes_become_one(text: str, flat: str) -> None:
    """Every rule gets a unique name, and every reference follows it."""
    assert resolve(parse(text)) == parse(flat)


def test_one_node_in_two_scopes_is_two_rules() -> None:
    """The meaning of a node depends on its place; the same meaning is made only once."""
    inner = Rules({"r": Sequence([Reference("a"), Literal(b"!")])}, Reference("r"))
    one, two = (Rules({"a": Literal(text)}, Choice([inner, inner])) for text in (b"x", b"y"))
    flat = resolve(Choice([one, two, one]))
    assert [name for name, _ in flat.rules] == ["a", "r", "a.2", "r.2"]
    assert language(flat, 2, b"xy!") == {b"x!", b"y!"}


def test_shared_terms_stay_closed_or_are_opened() -> None:
    """When they are opened, their rules join the others."""
    term = parse('rules { a = "x" shared(rules { a = "y" } in a) } in a')
    assert resolve(term) == term
    assert resolve(term, through_shared=True) == parse('rules { a = "x" a.2; a.2 = "y" } in a')


@pytest.mark.parametrize("seed", range(20))
def test_resolving_keeps_the_language(seed: int) -> None:
    """Random nestings of rules that shadow each other keep their meaning when they are flattened."""
    rng = random.Random(seed)

    def term(depth: int, names: tuple[str, ...]) -> Grammar:
        kind = rng.randrange(5 if depth else 2)
        if kind == 0 and names:
            return Reference(rng.choice(names))
        if kind <= 1:
            return Literal(rng.choice([b"x", b"y", b""]))
        if kind == 4:
            own = rng.sample("abc", rng.randint(1, 2))
            scope = tuple(sorted({*names, *own}))
            return Rules({name: term(depth - 1, scope) for name in own}, term(depth - 1, scope))
        items = [term(depth - 1, names) for _ in range(2)]
        return Sequence(items) if kind == 2 else Choice(items)

    for _ in range(30):
        nested = term(4, ())
        flat = resolve(nested)
        inner = [node for node in postorder(flat) if isinstance(node, Rules)]
        assert inner == [flat]
        assert language(flat, 3, b"xy") == language(nested, 3, b"xy")


def test_a_term_in_exponentially_many_scopes_meets_the_limit() -> None:
    """Forty nested choices of a scope for one node are a trillion meanings."""
    term: Grammar = Sequence([Reference(f"r{index}") for index in range(40)])
    for index in range(40):
        term = Sequence([Rules({f"r{index}": Literal(text)}, term) for text in (b"x", b"y")])
    with pytest.raises(LimitExceeded) as caught:
        resolve(term, Limits(grammar_nodes=100_000))
    assert caught.value.limit == "grammar_nodes"


# Properties of rules


@pytest.mark.parametrize(
    ("text", "regular"),
    [
        ('"a"* & ~"b"', True),
        ('rules { a = b b; b = "x" } in a', True),
        ('rules { a = "x" a? } in a', False),
        ('rules { a = "x" a? } in "y"', True),
        ('shared(rules { a = "(" a ")" | "" } in a)', False),
        ('"a" token(1)', False),
    ],
)
def test_regular_terms_are_those_without_recursion(text: str, regular: bool) -> None:
    """Only reachable rules count; special tokens are not text."""
    assert is_regular(parse(text)) is regular


def random_rules(rng: random.Random) -> dict[str, Grammar]:
    names = "abcde"

    def term(depth: int) -> Grammar:
        kind = rng.randrange(8 if depth else 3)
        if kind < 2:
            return Reference(rng.choice(names))
        if kind == 2:
            return rng.choice([EPSILON, EMPTY, Literal(b"x"), ByteClass([]), ByteClass([(120, 120)])])
        items = [term(depth - 1) for _ in range(rng.randint(0, 3))]
        if kind < 5:
            return Sequence(items)
        if kind == 5:
            return Choice(items)
        if kind == 6:
            parts = [term(depth - 1) for _ in range(2)]
            return Permutation(items[:1], items[1:], *parts, rng.randrange(3))
        return Repeat(term(depth - 1), rng.randrange(3), None)

    return {name: term(2) for name in names}


@pytest.mark.parametrize("seed", range(30))
def test_nullable_and_productive_rules(seed: int) -> None:
    """The answers agree with the strings of each rule, computed by set algebra."""
    rng = random.Random(seed)
    for _ in range(20):
        rules = random_rules(rng)
        members = {name: language(Rules(rules, Reference(name)), 4, b"x") for name in rules}
        assert Nullability(rules).rules == {name for name in rules if b"" in members[name]}
        certain = {name for name in rules if members[name]}
        productive = productive_rules(rules)
        assert certain <= productive
        for name in productive - certain:  # strings may just be longer
            longer = language(Rules(rules, Reference(name)), 12, b"x")
            assert longer, f"{name} in {rules}"


def test_nullability_of_complements() -> None:
    """Complements are decided first: they invert the answer, through rules and each other."""
    rules = {"a": Complement(Reference("b")), "b": Complement(Complement(Reference("c"))), "c": literal("x")}
    assert Nullability(rules).rules == {"a"}
    nullable = Nullability(rules)
    assert nullable(sequence(Reference("a"), Repeat(literal("y"), 0, 1)))
    assert not nullable(Reference("b"))
    assert not nullable(Reference("unknown"))
    with pytest.raises(GrammarError, match="complement refers to a recursive rule"):
        Nullability({"a": Complement(Reference("a"))})


def test_nesting_is_only_data() -> None:
    """The analyses of a term nested 20,000 deep end, without recursion and in linear time."""
    deep: Grammar = literal("x")
    for _ in range(6_667):
        deep = Complement(Choice([Shared(deep), EPSILON]))
    deep = Complement(deep)
    scopes: Grammar = literal("x")
    for _ in range(6_000):
        scopes = Rules({"a": scopes}, Reference("a"))
    with at_most(4):
        assert is_regular(deep)
        assert Nullability({"a": deep})(deep)
        assert free_references(deep) == ()
        assert len(resolve(scopes).rules) == 6_000


def test_components_of_a_graph() -> None:
    """Each component is a set of nodes that reach each other, and comes before the components that lead to it."""
    nodes = "abcd"
    edges = list(permutations(nodes, 2))
    for bits in range(0, 1 << len(edges), 7):
        chosen = [edge for index, edge in enumerate(edges) if bits >> index & 1]
        graph = {node: [target for source, target in chosen if source == node] for node in nodes}
        reach = {node: {node} for node in nodes}
        for _ in nodes:
            for source, target in chosen:
                reach[source] |= reach[target]
        components = strongly_connected(graph)
        assert sorted(node for component in components for node in component) == list(nodes)
        for index, component in enumerate(components):
            for node in nodes:
                mutual = node in reach[component[0]] and component[0] in reach[node]
                assert (node in component) is mutual
            assert all(set(later).isdisjoint(reach[component[0]]) for later in components[index + 1 :])


def test_components_of_a_long_chain() -> None:
    """A cycle of 20,000 nodes is one component, found without recursion."""
    size = 20_000
    assert len(strongly_connected({index: [(index + 1) % size] for index in range(size)})) == 1
    assert len(strongly_connected({index: [index + 1] for index in range(size)})) == size


def test_rules_that_cannot_end_are_those_without_a_finite_derivation() -> None:
    """Random rules: what is returned refers to itself and has no derivation, and it is empty iff all rules have one.

    A rule has a derivation iff it has one of a height of at most the number of rules, which is tried round by round.
    """
    rng = random.Random(5)
    names = ["a", "b", "c", "d"]
    seen = set()
    for _ in range(400):
        written = {
            name: [[rng.choice([*names, "x"]) for _ in range(rng.randint(1, 2))] for _ in range(rng.randint(1, 2))]
            for name in names
        }
        ends: set[str] = set()
        for _ in names:
            ends |= {name for name in names if any(ends.issuperset(set(item) - {"x"}) for item in written[name])}
        terms = {
            name: Choice(
                [sequence(*(literal("x") if part == "x" else Reference(part) for part in item)) for item in items]
            )
            for name, items in written.items()
        }
        found = unending_rules(Rules(terms, sequence(*map(Reference, names))))
        assert bool(found) == (len(ends) < len(names))
        assert ends.isdisjoint(found)
        inside = {part for name in found for item in written[name] for part in item}
        assert inside >= set(found)
        seen.add(len(found))
    assert seen >= {0, 1, 2, 3}
