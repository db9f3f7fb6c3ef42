"""Forward passes of one model, over several sequences at once where it can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from structgen.errors import GenerationError
from structgen.models.protocol import Extension, PackedModel

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.models.protocol import LanguageModel, Logits

__all__ = ["Passes"]

_PASS_TOKENS: Final = 512
"""Tokens that are run in one forward pass."""


@final
class Passes:
    """The forward passes of one run.

    Attributes:
        count: how many there were; one that several sequences share counts once.
        time_s: seconds that they took.

    Args:
        model: what is run.
        size: of the vocabulary.
    """

    def __init__(self, model: LanguageModel, size: int) -> None:
        self.count = 0
        self.time_s = 0.0
        self._name = model.name
        self._size = size
        self._packed = model if isinstance(model, PackedModel) else None

    @property
    def is_packed(self) -> bool:
        """Whether the model runs several sequences in one pass."""
        return self._packed is not None

    def run(self, contexts: Sequence[Context]) -> list[Logits]:
        """Run what the model has not seen yet of each context; ``[V]`` after each.

        Raises:
            GenerationError: the model's laws are of another size than the vocabulary.
        """
        began = perf_counter()
        rows: list[Logits] = []
        for pack in _packs(contexts):
            if self._packed is not None and len(pack) > 1:
                rows += self._packed.extend_many(pack)
                self.count += 1
            else:
                rows += [each.session.extend(each.token_ids) for each in pack]
                self.count += len(pack)
        self.time_s += perf_counter() - began
        for row in rows:
            if row.shape != (self._size,):
                raise GenerationError(
                    f"model {self._name!r}",
                    f"it returned {row.shape[-1]} logits",
                    evidence=f"its vocabulary has {self._size} tokens",
                    remedy="give the vocabulary the width of the model's head (size=...)",
                )
        return rows


def _packs(contexts: Sequence[Context]) -> Iterator[list[Extension]]:
    """What is to be run, in parts of a bounded number of tokens."""
    pack: list[Extension] = []
    tokens = 0
    for context in contexts:
        unseen = context.unseen
        tokens += len(unseen)
        if pack and tokens > _PASS_TOKENS:
            yield pack
            pack, tokens = [], len(unseen)
        pack.append(Extension(context.session, unseen, all_positions=False))
    if pack:
        yield pack
