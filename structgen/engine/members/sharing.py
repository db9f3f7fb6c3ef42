"""A grammar whose automaton is small because terms that it has in several places become rules."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Final

from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import Choice, Grammar, Reference, Repeat, Rules, Sequence, postorder
from structgen.grammar.scopes import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.grammar.limits import Limits

__all__ = ["with_shared_rules"]

_TRANSPARENT: Final = (Sequence, Choice, Repeat, Rules)
"""Terms whose children may be called, as those of operators on regular languages may not."""


def with_shared_rules(grammar: Grammar, limits: Limits) -> Grammar:
    """Return an equal grammar in which a term that stands in several places is a rule, which is called there.

    A terminal that is made of others many times over has an automaton that is too large to be written out, but a small
    network of calls.  Nothing is shared that no object of ``grammar`` shares.

    Raises:
        LimitExceeded, GrammarError: as ``resolve``.

    Complexity: linear in the flat grammar.
    """
    flat = resolve(grammar, limits)
    rules = dict(flat.rules)
    terms = [*rules.values(), flat.body]
    tops = {id(term) for term in terms}
    uses: Counter[int] = Counter()
    inside: set[int] = set()
    for node in _visible(terms):
        inside.add(id(node))
        if isinstance(node, _TRANSPARENT):
            uses.update(id(child) for child in node.children)
    made: dict[int, Grammar] = {}
    shared: dict[str, Grammar] = {}
    names = (name for number in count() if (name := f"${number}") not in rules)
    for term in terms:
        for node in postorder(term, known=lambda node: id(node) in made):
            new = node
            if id(node) in inside and isinstance(node, _TRANSPARENT):
                new = with_children(node, [made[id(child)] for child in node.children])
                if uses[id(node)] > 1 and id(node) not in tops and not isinstance(node, Rules):
                    name = next(names)
                    shared[name] = new
                    new = Reference(name)
            made[id(node)] = new
    if not shared:
        return flat
    return Rules({name: made[id(term)] for name, term in rules.items()} | shared, made[id(flat.body)])


def _visible(terms: list[Grammar]) -> Iterator[Grammar]:
    """Yield the terms that only sequences, choices and repetitions stand around."""
    seen: set[int] = set()
    agenda = list(terms)
    while agenda:
        node = agenda.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            if isinstance(node, _TRANSPARENT):
                agenda += node.children
