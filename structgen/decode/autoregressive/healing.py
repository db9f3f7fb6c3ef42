"""Token healing: the last token of a prompt may be rewritten, so that a token may span prompt and output.

A prompt that ends within a word of the tokenizer ends with tokens that the model never saw in that place: after the
tokens of ``"http:"`` it has seen ``"//"`` only as ``"://"``, one token.  So the last token is taken off the prompt, and
the output must begin with its bytes.  Source: S. Lundberg, "The Art of Prompt Design: Prompt Boundaries and Token
Healing" (2023), in the library guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from structgen.engine import Constraint, compile
from structgen.grammar import nodes as ir

__all__ = ["Healing", "heal"]


@final
@dataclass(frozen=True, slots=True)
class Healing:
    """What the tokens of an output have before the output.

    Attributes:
        prefix: the bytes of the prompt's last token.
        grammar: the grammar of the output after them.
    """

    prefix: bytes
    grammar: ir.Grammar


def heal(prompt: Sequence[int], constraint: Constraint) -> tuple[list[int], Constraint, Healing | None]:
    """Take the last token off a prompt, and put its bytes before the strings of a constraint.

    A special token has no bytes, and no other token can span it: then nothing changes, and there is no ``Healing``.

    Raises:
        ValueError: the prompt is that token alone, so that the model would have nothing to go by.
        LimitExceeded: a bound of the constraint's limits was reached.

    Complexity: a compilation of the grammar, most of whose terms the engine has already.
    """
    vocabulary = constraint.vocabulary
    prefix = vocabulary.tokens[prompt[-1]] if len(prompt) and 0 <= prompt[-1] < vocabulary.size else b""
    if not prefix:
        return list(prompt), constraint, None
    if len(prompt) == 1:
        raise ValueError(
            f"heal=True: the prompt is one token, {prefix!r}, so no token would be left before the output; pass a "
            "longer prompt, or leave heal out"
        )
    grammar = constraint.grammar
    together = compile(ir.Sequence([ir.Literal(prefix), grammar]), vocabulary, limits=constraint.limits)
    return list(prompt[:-1]), together, Healing(prefix, grammar)
