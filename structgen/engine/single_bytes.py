"""A vocabulary of single bytes, for questions about a language that have nothing to do with tokens."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import Budget, Capture, SpecialToken, Tempered, TokenSet, postorder
from structgen.grammar.report import Described

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["byte_vocabulary", "texts_of"]

_MAX_SPECIAL_ID: Final = 1 << 20


def byte_vocabulary(*grammars: Grammar) -> Vocabulary:
    """Return a vocabulary of single bytes, an end token, and the special tokens that the grammars name.

    A special token that may be written as text is not among them, so that it is.

    Raises:
        LimitExceeded: a special token has an id that no vocabulary has.
    """
    found = [node for grammar in grammars for node in postorder(grammar) if isinstance(node, SpecialToken)]
    named = {node.token for node in found if not node.or_text}
    ids = {token for token in named if isinstance(token, int)}
    texts = sorted(token for token in named if isinstance(token, str))
    if max(ids, default=0) > _MAX_SPECIAL_ID:
        raise LimitExceeded(
            f"special token {max(ids)}",
            limit="tokens of a vocabulary",
            maximum=_MAX_SPECIAL_ID,
            remedy="name the token by its text, or give an id that a vocabulary has",
        )
    free = (index for index in itertools.count() if index not in ids)
    eos, *others = itertools.islice(free, 1 + len(texts) + 256)
    special: dict[int, str | None] = dict.fromkeys(ids) | dict(zip(others, texts, strict=False))
    tokens = [b""] * (max([eos, *others, *ids]) + 1)
    for value, index in enumerate(others[len(texts) :]):
        tokens[index] = bytes([value])
    return Vocabulary(tokens, eos=[eos], special=special)


def texts_of(grammar: Grammar) -> Grammar:
    """Return ``grammar`` without what is said of tokens, captures and descriptions: the texts are the same.

    A budget of tokens and a temperature take the place of nothing, for a text alone has no tokens.

    Raises:
        GrammarError: the grammar has sets of tokens, which are no text.

    Complexity:
        O(n) for n distinct nodes; without recursion.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(grammar):
        if isinstance(node, TokenSet):
            raise GrammarError(
                "grammar",
                "it has a set of tokens, which is no text",
                evidence=f"the term is {node!r}",
                remedy="ask without this part, for only a vocabulary tells what such tokens write",
            )
        children = [made[id(child)] for child in node.children]
        if isinstance(node, Budget) and node.characters is not None:
            made[id(node)] = Budget(children[0], characters=node.characters)
        elif isinstance(node, (Budget, Tempered, Capture, Described)):
            made[id(node)] = children[0]
        else:
            made[id(node)] = with_children(node, children)
    return made[id(grammar)]
