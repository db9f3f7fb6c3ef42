"""The checks that every session makes before a forward pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from structgen.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.protocol import Mixture

__all__ = ["check_extension", "check_mixtures", "check_truncation"]

_ROUNDING: Final = 1e-6


def check_extension(
    token_ids: Sequence[int], *, length: int, name: str, id_limit: int, max_context: int | None
) -> list[int]:
    """Return the ids as plain ints when a session of ``length`` tokens can take them.

    Args:
        token_ids: what the caller wants to append.
        length: tokens that the session holds.
        name: the model, for the message.
        id_limit: one more than the largest id that the model embeds.
        max_context: the longest sequence, or None.

    Raises:
        GenerationError: no tokens, an id out of range, or too many tokens; the message says by how many.
    """
    subject = f"model {name!r}"
    ids = [int(token) for token in token_ids]
    if not ids:
        raise GenerationError(subject, "no tokens to extend the sequence by", remedy="pass at least one token id")
    if min(ids) < 0 or max(ids) >= id_limit:
        position, token = next((i, t) for i, t in enumerate(ids) if not 0 <= t < id_limit)
        raise GenerationError(
            subject,
            f"no token has the id {token}",
            evidence=f"position {position}; ids run from 0 to {id_limit - 1}",
        )
    if max_context is not None and length + len(ids) > max_context:
        total = length + len(ids)
        raise GenerationError(
            subject,
            f"the sequence is {total - max_context} tokens longer than the context",
            evidence=f"{length} tokens and {len(ids)} more make {total}, the context holds {max_context}",
            remedy="shorten the prompt, lower max_tokens, or use a model with a longer context",
        )
    return ids


def check_mixtures(
    mixtures: Sequence[Mixture], *, length: int, name: str, id_limit: int, max_context: int | None
) -> list[dict[int, float]]:
    """Return the mixtures, each in the order of ids, when a session of ``length`` positions can take them.

    Args:
        mixtures: what the caller wants to append, one position each.
        length: positions that the session holds.
        name: the model, for the message.
        id_limit: as for ``check_extension``.
        max_context: the longest sequence, or None.

    Raises:
        GenerationError: as ``check_extension``; or weights that are not positive or do not sum to 1.
    """
    checked = []
    for mixture in mixtures:
        weights = {int(token): float(weight) for token, weight in sorted(mixture.items())}
        total = math.fsum(weights.values())
        if not (min(weights.values(), default=0.0) > 0 and abs(total - 1) <= _ROUNDING):
            raise GenerationError(
                f"model {name!r}",
                "the weights of a mixture must be positive and sum to 1",
                evidence=f"{weights} sums to {total:.9g}",
                remedy="leave out tokens without weight, and divide by the sum",
            )
        check_extension(list(weights), length=0, name=name, id_limit=id_limit, max_context=None)
        checked.append(weights if len(weights) > 1 else dict.fromkeys(weights, 1.0))
    # One token for each: how many positions there are is all that is left to check.
    heads = [next(iter(weights)) for weights in checked]
    check_extension(heads, length=length, name=name, id_limit=id_limit, max_context=max_context)
    return checked


def check_truncation(length: int, *, held: int, name: str) -> None:
    """Raise ``GenerationError`` unless a session that holds ``held`` tokens can be cut to ``length``."""
    if not 0 <= length <= held:
        raise GenerationError(
            f"model {name!r}",
            f"a sequence cannot be cut to {length} tokens",
            evidence=f"it holds {held}",
        )
