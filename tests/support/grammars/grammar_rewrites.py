"""Rewrites of grammars that keep the language: other names, other rules, other recursion."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import EPSILON, Choice, Grammar, Reference, Repeat, Rules, Sequence, choice, sequence

__all__ = ["REWRITES", "rewritten"]

Path: TypeAlias = tuple[int, ...]
Rewrite: TypeAlias = Callable[[random.Random, Rules], Rules | None]
"""Gives the same language in other rules; None where there is nothing to rewrite."""


def rewritten(rng: random.Random, grammar: Rules, name: str) -> Rules | None:
    """Return ``grammar`` after the rewrite called ``name`` at a random place."""
    return REWRITES[name](rng, grammar)


def _places(grammar: Rules, wanted: Callable[[Grammar], bool]) -> list[Path]:
    """The places of such terms, except inside rules of rules and terms that must be closed."""

    def below(node: Grammar, path: Path) -> Iterator[Path]:
        if wanted(node):
            yield path
        if isinstance(node, (Sequence, Choice, Repeat)):
            for index, child in enumerate(node.children):
                yield from below(child, (*path, index))

    return [path for index, child in enumerate(grammar.children) for path in below(child, (index,))]


def _at(node: Grammar, path: Path) -> Grammar:
    for index in path:
        node = node.children[index]
    return node


def _replaced(node: Grammar, path: Path, term: Grammar) -> Grammar:
    if not path:
        return term
    children = list(node.children)
    children[path[0]] = _replaced(children[path[0]], path[1:], term)
    return with_children(node, children)


def _everywhere(
    rng: random.Random, grammar: Rules, wanted: Callable[[Grammar], bool], make: Callable[[Grammar], Grammar]
) -> Rules | None:
    places = _places(grammar, wanted)
    if not places:
        return None
    path = rng.choice(places)
    made = _replaced(grammar, path, make(_at(grammar, path)))
    assert isinstance(made, Rules)
    return made


def _fresh(grammar: Rules) -> str:
    return f"new{len(grammar.rules)}"


def _with_rule(grammar: Rules, name: str, term: Grammar) -> Rules:
    return Rules([*grammar.rules, (name, term)], grammar.body)


def _rename(rng: random.Random, grammar: Rules) -> Rules:
    names = [name for name, _ in grammar.rules]
    rng.shuffle(names)
    new = {name: f"{other}.{index}" for index, (name, other) in enumerate(zip(names, reversed(names), strict=True))}

    def renamed(node: Grammar) -> Grammar:
        if isinstance(node, Reference):
            return Reference(new[node.name])
        return with_children(node, [renamed(child) for child in node.children]) if node.children else node

    return Rules([(new[name], renamed(term)) for name, term in grammar.rules], renamed(grammar.body))


def _inline(rng: random.Random, grammar: Rules) -> Rules | None:
    rules = dict(grammar.rules)
    return _everywhere(
        rng,
        grammar,
        lambda node: isinstance(node, Reference),
        lambda node: rules[node.name] if isinstance(node, Reference) else node,
    )


def _outline(rng: random.Random, grammar: Rules) -> Rules | None:
    name = _fresh(grammar)
    path = rng.choice(_places(grammar, lambda _: True))
    made = _replaced(grammar, path, Reference(name))
    assert isinstance(made, Rules)
    return _with_rule(made, name, _at(grammar, path))


def _factor(rng: random.Random, grammar: Rules) -> Rules | None:
    """``a b | a c`` to ``a (b | c)``."""

    def head(node: Grammar) -> Grammar:
        return node.items[0] if isinstance(node, Sequence) and node.items else node

    def tail(node: Grammar) -> Grammar:
        return sequence(*node.items[1:]) if isinstance(node, Sequence) and node.items else EPSILON

    def has_common(node: Grammar) -> bool:
        return isinstance(node, Choice) and len({head(item) for item in node.items}) < len(node.items)

    def factored(node: Grammar) -> Grammar:
        groups: dict[Grammar, list[Grammar]] = {}
        for item in node.children:
            groups.setdefault(head(item), []).append(tail(item))
        return choice(*(sequence(first, choice(*rest)) for first, rest in groups.items()))

    return _everywhere(rng, grammar, has_common, factored)


def _distribute(rng: random.Random, grammar: Rules) -> Rules | None:
    """``(a | b) c`` to ``a c | b c``."""

    def first_choice(node: Grammar) -> int | None:
        if not isinstance(node, Sequence):
            return None
        return next((index for index, item in enumerate(node.items) if isinstance(item, Choice)), None)

    def distributed(node: Grammar) -> Grammar:
        index = first_choice(node)
        assert index is not None
        before, after = node.children[:index], node.children[index + 1 :]
        return Choice([sequence(*before, item, *after) for item in node.children[index].children])

    return _everywhere(rng, grammar, lambda node: first_choice(node) is not None, distributed)


def _is_loop(node: Grammar) -> bool:
    return isinstance(node, Repeat) and node.max is None and node.min <= 1


def _recursion(make: Callable[[Grammar, Reference], Grammar]) -> Rewrite:
    def rewrite(rng: random.Random, grammar: Rules) -> Rules | None:
        places = _places(grammar, _is_loop)
        if not places:
            return None
        path = rng.choice(places)
        loop = _at(grammar, path)
        assert isinstance(loop, Repeat)
        name = _fresh(grammar)
        all_of = Reference(name)
        term = all_of if loop.min == 0 else sequence(loop.item, all_of)
        made = _replaced(grammar, path, term)
        assert isinstance(made, Rules)
        return _with_rule(made, name, make(loop.item, all_of))

    return rewrite


def _unroll(rng: random.Random, grammar: Rules) -> Rules | None:
    """``a{m,n}`` to its first copy and the others."""

    def unrolled(node: Grammar) -> Grammar:
        assert isinstance(node, Repeat)
        rest = Repeat(node.item, max(node.min - 1, 0), None if node.max is None else node.max - 1)
        once = sequence(node.item, rest)
        return once if node.min else choice(EPSILON, once)

    return _everywhere(rng, grammar, lambda node: isinstance(node, Repeat) and node.max != 0, unrolled)


def _reorder(rng: random.Random, grammar: Rules) -> Rules | None:
    return _everywhere(
        rng,
        grammar,
        lambda node: isinstance(node, Choice) and len(node.items) > 1,
        lambda node: Choice(rng.sample(node.children, len(node.children))),
    )


def _repeat_alternatives(rng: random.Random, grammar: Rules) -> Rules | None:
    return _everywhere(rng, grammar, lambda _: True, lambda node: Choice([node, node]))


def _left_to_right(rng: random.Random, grammar: Rules) -> Rules | None:
    """``s = s a | b`` to ``s = b t; t = a t | ()``, for a rule that is left-recursive in its alternatives."""
    for name, term in rng.sample(grammar.rules, len(grammar.rules)):
        own = Reference(name)
        items = term.items if isinstance(term, Choice) else (term,)
        steps = [sequence(*item.items[1:]) for item in items if isinstance(item, Sequence) and item.items[:1] == (own,)]
        bases = [item for item in items if not (isinstance(item, Sequence) and item.items[:1] == (own,))]
        if not steps:
            continue
        tail = _fresh(grammar)
        rules = [
            (other, sequence(choice(*bases) if bases else Choice(()), Reference(tail)) if other == name else body)
            for other, body in grammar.rules
        ]
        return _with_rule(
            Rules(rules, grammar.body), tail, choice(*(sequence(step, Reference(tail)) for step in steps), EPSILON)
        )
    return None


REWRITES: Final[dict[str, Rewrite]] = {
    "rename": _rename,
    "inline": _inline,
    "outline": _outline,
    "factor": _factor,
    "distribute": _distribute,
    "right recursion": _recursion(lambda item, own: choice(EPSILON, sequence(item, own))),
    "left recursion": _recursion(lambda item, own: choice(EPSILON, sequence(own, item))),
    "double recursion": _recursion(lambda item, own: choice(EPSILON, item, sequence(own, own))),
    "unroll": _unroll,
    "reorder": _reorder,
    "repeat alternatives": _repeat_alternatives,
    "left to right": _left_to_right,
}
