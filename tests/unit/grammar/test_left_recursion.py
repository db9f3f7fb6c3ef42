"""Removal of left recursion: the same language, and no rule that can call itself before it has read anything."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from machine_load import at_most

from structgen.errors import GrammarError, LimitExceeded, UnsupportedFeature
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    EPSILON,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    literal,
    postorder,
    sequence,
)
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.reader import parse
from structgen.testing.small_scope import language

NAMES = ("a", "b", "c")


def left_calls(node: Grammar, nullable: dict[str, bool]) -> tuple[set[str], bool]:
    """Names that a term without rules inside can start with, and whether it is nullable: by plain recursion."""
    match node:
        case Reference():
            return {node.name}, nullable[node.name]
        case Literal():
            return set(), not node.data
        case Sequence():
            names: set[str] = set()
            for item in node.items:
                more, empty = left_calls(item, nullable)
                names |= more
                if not empty:
                    return names, False
            return names, True
        case Choice():
            below = [left_calls(item, nullable) for item in node.items]
            return set().union(*(more for more, _ in below)), any(empty for _, empty in below)
        case Repeat():
            more, empty = left_calls(node.item, nullable)
            return (more if node.max != 0 else set()), empty or node.min == 0
        case Capture() | Described():
            return left_calls(node.item, nullable)
        case Shared() | JsonString() | CharClass():
            return set(), b"" in language(node, 0, b"")
        case Intersection() | Complement():
            below = [left_calls(item, nullable) for item in node.children]
            return set().union(*(more for more, _ in below)), b"" in language(node, 0, b"")
        case _:
            raise TypeError(node)


def is_left_recursive(grammar: Grammar) -> bool:
    """Whether a rule can reach itself in left position, judged by brute force."""
    while isinstance(grammar, Described):
        grammar = grammar.item
    if any(is_left_recursive(node.item) for node in postorder(grammar) if isinstance(node, Shared)):
        return True
    if not isinstance(grammar, Rules):
        return any(is_left_recursive(node) for node in scopes_below(grammar))
    nullable = {name: b"" in language(Rules(grammar.rules, Reference(name)), 0, b"") for name, _ in grammar.rules}
    calls = {name: left_calls(term, nullable)[0] for name, term in grammar.rules}
    for name, called in calls.items():
        reached: set[str] = set()
        todo = set(called)
        while todo:
            other = todo.pop()
            reached.add(other)
            todo |= calls[other] - reached
        if name in reached:
            return True
    return False


def scopes_below(grammar: Grammar) -> Iterator[Grammar]:
    """The outermost rules of a term."""
    if isinstance(grammar, Rules):
        yield grammar
    else:
        for child in grammar.children:
            yield from scopes_below(child)


def check(grammar: Grammar, max_length: int = 5, alphabet: bytes = b"xy") -> Grammar:
    """Compare the rewritten grammar with the original, string by string."""
    rewritten = remove_left_recursion(grammar)
    assert not is_left_recursive(rewritten), f"{grammar}\n{rewritten}"
    expected = language(grammar, max_length, alphabet)
    assert language(rewritten, max_length, alphabet) == expected, f"{grammar}\n{rewritten}"
    return rewritten


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ('e = e "x" | "y"', 'e = "y" "x"*'),
        ('e = e "x" e | "y"', 'e = "y" ("x" e)*'),
        ('e = e e | "y"', 'e = "y" e*'),
        ('e = e "x" | e "y" | "xy" | "yx"', 'e = ("xy" | "yx") ("x" | "y")*'),
        ('e = (e "x" | "y") "x"?', 'e = "y" "x"? ("x" "x"?)*'),
        ('e = (e "x")? "y"', 'e = "y" ("xy")*'),
        ('e = (e "x"){2} "y" | "y"', 'e = "y" ("x" e "xy")*'),
        ('e = e | "y"', 'e = "y"'),
        ('e = e "x"', "e = (|)"),
        ("e = e", "e = (|)"),
    ],
)
def test_common_forms_become_repetitions(text: str, rewritten: str) -> None:
    """Direct left recursion in one rule needs no further rules."""
    result = check(parse(f"rules {{ {text} }} in e"))
    assert result == parse(f"rules {{ {rewritten} }} in e")


@pytest.mark.parametrize(
    "text",
    [
        'a = b "x" | "x"; b = a "y" | "y"',  # indirect
        'a = b "x" | "y"; b = c "y" | c; c = a "x" | b | "x"',
        'a = b a "x" | "y"; b = "x" | ""',  # hidden after a rule that may be empty
        'a = b? a "x" | "y"; b = "x" a',
        'a = "x"* a "y" | "x"',
        'a = b | "x"; b = c; c = a | "y"',  # rules that turn into each other
        'a = a a | "" | "x"',  # empty and ambiguous
        'a = b b; b = a | "x" | ""',
        'a = b c "x" | ""; b = a | "y"; c = b?',
        'a = (a?){2,3} "x" | (a | "y"){0,2}',
        'a = (b a | a "y")* "x"; b = (a b)?',
        'a = (("" | "x") & ("" | "y")) a "x" | "y"',  # after boolean operators
        'a = (~"x" & ("" | "x" | "y")) a "y" | "x"',
        'a = @n("x"?) a "y" | "x"',
        'a = @n("x"?) @m(("y" | "")) a "y" | "x"',
        'a = shared("x"?) a "y" | "x"',
        'a = shared(rules { b = b "x" | "" } in b) a "y" | "x"',
        'a = "y" | a shared(rules { b = b "x" | "x" } in b)',
    ],
)
def test_every_kind_of_left_recursion(text: str) -> None:
    """With indirect, hidden, cyclic, empty and ambiguous recursion the strings stay and no left recursion is left."""
    assert is_left_recursive(parse(f"rules {{ {text} }} in a"))
    for body in ("a", '"x" a a', 'a "y" | ""'):
        check(parse(f"rules {{ {text} }} in {body}"))


def random_term(rng: random.Random, depth: int) -> Grammar:
    """A term over the rules of ``NAMES``."""
    kind = rng.randrange(9 if depth else 3)
    if kind < 2:
        return Reference(rng.choice(NAMES))
    if kind == 2:
        return rng.choice([EPSILON, Literal(b"x"), Literal(b"y"), Literal(b"xy")])
    items = [random_term(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind < 6:
        return Sequence(items)
    if kind < 8:
        return Choice([*items, Literal(b"y")] if rng.random() < 0.5 else items)
    low = rng.randrange(3)
    return Repeat(items[0], low, rng.choice([None, low, low + 1, low + 2]))


@pytest.mark.parametrize("seed", range(40))
def test_random_grammars_keep_their_language(seed: int) -> None:
    """A hundred random grammars of three rules agree, most of them left-recursive in several ways at once."""
    rng = random.Random(seed)
    recursive = 0
    for _ in range(100):
        rules = {name: random_term(rng, 2) for name in NAMES}
        grammar = Rules(rules, random_term(rng, 1))
        if is_left_recursive(grammar):
            recursive += 1
            check(grammar, 4)
        else:
            assert remove_left_recursion(grammar) is grammar
    assert recursive > 30


def test_nested_scopes_are_made_flat() -> None:
    """Rules of one name in two scopes stay two rules."""
    inner = Rules({"a": Choice([Reference("a") + "x", Literal(b"y")])}, Reference("a"))
    outer = Rules({"a": Choice([Reference("a") + inner, Literal(b"x")])}, Reference("a"))
    rewritten = check(outer)
    assert rewritten == parse('rules { a = "x" a.2*; a.2 = "y" "x"* } in a')


def test_free_names_bind_in_the_scope_of_their_place() -> None:
    """A shared node that stands in two scopes has two meanings."""
    node = sequence(Reference("a"), Reference("b"))

    def scope(text: str) -> Grammar:
        return Rules({"b": Literal(text.encode())}, node)

    grammar = Rules({"a": Choice([scope("x"), scope("y"), literal("y")])}, Reference("a"))
    assert is_left_recursive(parse('rules { a = a "x" | a "y" | "y" } in a'))
    assert language(check(grammar, 6), 6, b"xy") == language(parse('"y" ("x" | "y")*'), 6, b"xy")


def test_descriptions_of_the_root_are_kept() -> None:
    """A front end's description of the whole survives the rewriting."""
    description = Description(source="lark")
    rewritten = remove_left_recursion(Described(parse('rules { e = e "x" | "y" } in e'), description))
    assert isinstance(rewritten, Described)
    assert rewritten.description is description


def test_names_that_are_taken_are_not_taken_again() -> None:
    """A rule that has the name of a new rule keeps it."""
    grammar = parse('rules { a = a.after.b b "x" | b; b = a "y" | "x"; a.after.b = "y"; } in a')
    check(grammar)
    check(parse('rules { a = a a | "" | "x"; a.nonempty = a "y" | "x" } in a.nonempty'))


def test_a_capture_that_starts_with_the_recursion_is_refused() -> None:
    """The start of the capture is known too late; it is refused by name, not dropped."""
    with pytest.raises(UnsupportedFeature) as caught:
        remove_left_recursion(parse('rules { e = @left(e) "+" t | t; t = "x" } in e'))
    assert caught.value.feature == "capture"
    assert caught.value.where == "left"
    kept = remove_left_recursion(parse('rules { e = e "+" @right(t) | @first(t); t = "x" } in e'))
    assert kept == parse('rules { e = @first(t) ("+" @right(t))*; t = "x" } in e')


@pytest.mark.parametrize("text", ['e = (e & "x") | "y"', 'e = ~e "x" | "y"'])
def test_recursion_through_boolean_operators_is_refused(text: str) -> None:
    """Only regular terms may be intersected or complemented."""
    with pytest.raises(GrammarError, match="recursive"):
        remove_left_recursion(parse(f"rules {{ {text} }} in e"))


def test_unknown_rules_are_named() -> None:
    """A free reference is an error that names it."""
    with pytest.raises(GrammarError, match="no rule is called 'missing'"):
        remove_left_recursion(parse("rules { e = e missing } in e"))


def test_a_grammar_without_left_recursion_is_the_same_object() -> None:
    """The check is linear and returns the same object."""
    chain = {f"r{i}": sequence("x", Reference(f"r{i + 1}"), Reference("r0")) for i in range(5_000)}
    grammar = Rules(chain | {"r5000": literal("y")}, Reference("r0"))
    with at_most(1):
        assert remove_left_recursion(grammar) is grammar
    words = Choice([literal(str(i)) for i in range(50_000)])
    with at_most(0.5):
        assert remove_left_recursion(words) is words


@pytest.mark.exhaustive
def test_deep_left_recursion() -> None:
    """Long chains and deep nesting need no recursion."""
    rules: dict[str, Grammar] = {f"r{i}": Choice([Reference(f"r{i + 1}") + "x", literal("y")]) for i in range(2000)}
    grammar = Rules(rules | {"r2000": Reference("r0") + "y"}, Reference("r0"))
    rewritten = remove_left_recursion(grammar)
    assert isinstance(rewritten, Rules)
    assert len(rewritten.rules) < 4100
    term: Grammar = Reference("e")
    for index in range(10_000):
        term = Sequence([term, Literal(b"x")]) if index % 2 else Choice([term, Literal(b"y")])
    remove_left_recursion(Rules({"e": term}, Reference("e")))


def test_the_size_is_bounded() -> None:
    """If every rule starts with all others, the result is polynomial, or a limit is reached."""
    names = [f"r{i}" for i in range(25)]
    rules = {name: Choice([*(Reference(other) + name for other in names), literal("x")]) for name in names}
    body = Choice([Reference(name) for name in names])
    rewritten = remove_left_recursion(Rules(rules, body))
    assert isinstance(rewritten, Rules)
    assert len(rewritten.rules) == 25 + 25 * 25
    with pytest.raises(LimitExceeded) as caught:
        remove_left_recursion(Rules(rules, body), Limits(grammar_nodes=12_000))
    assert caught.value.limit == "grammar_nodes"
