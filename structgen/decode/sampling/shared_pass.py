"""Forward passes and contexts that the branches of one run share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from structgen.errors import GenerationError
from structgen.models.protocol import PackedModel

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.models.protocol import LanguageModel, Logits
    from structgen.models.protocol.tree import TokenTree

__all__ = ["ContextPool", "Passes"]


@final
class ContextPool:
    """Contexts that hold the prompt, and behind it what each was used for last.

    A beginning goes to the context that has most of it already, so that mostly one token is left to run.  There are as
    many as beginnings were ever asked for together.

    Args:
        start: returns a new context with the prompt.
        prompt_tokens: how many tokens that has.
    """

    def __init__(self, start: Callable[[], Context], prompt_tokens: int) -> None:
        self._start = start
        self._prompt_tokens = prompt_tokens
        self._contexts: list[Context] = []
        self._held: list[tuple[int, ...]] = []

    def placed(self, paths: Sequence[tuple[int, ...]]) -> list[Context]:
        """Return a context for each of the paths, which holds it and has a token of it, or of the prompt, to run.

        Complexity: O(paths^2 length).
        """
        while len(self._contexts) < len(paths):
            self._contexts.append(self._start())
            self._held.append(())
        free = list(range(len(self._contexts)))
        placed = []
        for path in paths:
            index = max(free, key=lambda at: _shared_length(self._held[at], path))
            free.remove(index)
            self._replace(index, path)
            placed.append(self._contexts[index])
        return placed

    def _replace(self, index: int, path: tuple[int, ...]) -> None:
        context = self._contexts[index]
        shared = _shared_length(self._held[index], path)
        if shared < len(self._held[index]) or shared == len(path):
            context.truncate(self._prompt_tokens + shared)
        context.append(path[shared:])
        self._held[index] = path


def _shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many tokens two paths begin with alike."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next(at for at in range(count) if first[at] != second[at])


_MAX_PASS_TOKENS: Final = 512
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

    def run(self, contexts: Sequence[Context], trees: Sequence[TokenTree | None] = ()) -> list[Logits]:
        """Run what the model has not seen yet of each context; ``[V]`` after each.

        Args:
            contexts: see above.
            trees: what may follow each of them, which is looked at in the same pass where its session and the model
                can; none for no context.

        Raises:
            GenerationError: the model's laws are of another size than the vocabulary.
        """
        began = perf_counter()
        rows: list[Logits] = []
        for pack in _packs([*zip(contexts, trees or repeat(None), strict=False)]):
            if self._packed is not None and len(pack) > 1:
                looked = [(context, tree if context.branches else None) for context, tree in pack]
                told = self._packed.extend_many([context.extension(tree) for context, tree in looked])
                rows += [context.told(tree, each) for (context, tree), each in zip(looked, told, strict=True)]
                self.count += 1
            else:
                before = sum(context.forwards for context, _ in pack)
                rows += [context.laws(1, tree)[0] for context, tree in pack]
                self.count += sum(context.forwards for context, _ in pack) - before
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


def _packs(
    contexts: Sequence[tuple[Context, TokenTree | None]],
) -> Iterator[list[tuple[Context, TokenTree | None]]]:
    """What is to be run, in parts of a bounded number of tokens."""
    pack: list[tuple[Context, TokenTree | None]] = []
    tokens = 0
    for context, tree in contexts:
        count = len(context.unseen) + (0 if tree is None else len(tree.token_ids))
        tokens += count
        if pack and tokens > _MAX_PASS_TOKENS:
            yield pack
            pack, tokens = [], count
        pack.append((context, tree))
    if pack:
        yield pack
