"""The draft model's own sequence, which follows that of the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.step.context import Context
from structgen.decode.step.logits_row import on_host
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafters.model_growth import DraftPosition
    from structgen.models.protocol import LanguageModel, Logits

__all__ = ["DraftSession", "DraftStage", "check_capacity", "common_length"]

TokenPath = tuple[int, ...]


class DraftStage(Protocol):
    """What drafts for a draft model."""

    def guess(self, context: Context, place: DraftPosition, most: int, /) -> DraftTree:
        """Return what the draft model may say behind ``context``, at most ``most`` tokens that the grammar allows."""

    def told(self, start: int, tree: DraftTree, rows: Logits, /) -> None:
        """Take in what a pass of the draft model told: see ``Verified``."""


@final
class DraftSession:
    """A sequence with its cache, and the logits that were computed behind it.

    Invariant: what ``rows`` returns depends on the sequence and the path alone, not on what was followed or asked for
    before (up to rounding of float32 sums).

    Close it to free the cache.

    Args:
        model: the draft model.
    """

    __slots__ = ("_base", "_context", "_model", "_rows")

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._context = Context(model)
        self._base: list[int] = []
        self._rows: dict[TokenPath, Logits] = {}

    @property
    def forwards(self) -> int:
        """Forward passes that were run."""
        return self._context.forwards

    @property
    def cached(self) -> int:
        """How many tokens the cache holds."""
        return self._context.session.length

    def follow(self, tokens: Sequence[int]) -> None:
        """Stand behind ``tokens``, at least one; what they share with the sequence before stays cached."""
        base = list(tokens)
        before = len(self._base)
        if base[:before] == self._base:
            added = tuple(base[before:])
            count = len(added)
            self._rows = {path[count:]: row for path, row in self._rows.items() if path[:count] == added}
        else:
            self._rows = {}
        self._base = base

    def fits(self, path: TokenPath) -> bool:
        """Whether the model can read the sequence and ``path``."""
        bound = self._model.max_context
        return bound is None or len(self._base) + len(path) <= bound

    def rows(
        self,
        paths: Sequence[TokenPath],
        *,
        place: DraftPosition | None = None,
        stage: DraftStage | None = None,
        most: int = 0,
    ) -> list[Logits | None]:
        """Return the logits behind the sequence and each path; None where a path is too long for the model.

        What is not known yet is run in one forward pass, a tree, where the session can branch; else in one for each
        path.

        Args:
            paths: tokens behind the sequence; none for the sequence itself.
            place: where the last path stands in the grammar; needed for a stage only.
            stage: guesses at what else will be asked for; asked where there is a single path.
            most: the most tokens that are of use to guess.
        """
        missing = [path for path in dict.fromkeys(paths) if path not in self._rows and self.fits(path)]
        if len(missing) == 1:
            self._run(missing[0], missing, stage if place is not None else None, place, most)
        elif missing and self._context.branches:
            first = min(missing)
            self._run(first[: common_length(first, max(missing))], missing, None, None, 0)
        else:
            for path in missing:
                self._run(path, [path], None, None, 0)
        return [self._rows.get(path) for path in paths]

    def close(self) -> None:
        """Free the cache and forget the sequence."""
        self._context.close()
        self._context = Context(self._model)
        self._base = []
        self._rows = {}

    def _run(
        self,
        trunk: TokenPath,
        paths: Sequence[TokenPath],
        stage: DraftStage | None,
        place: DraftPosition | None,
        most: int,
    ) -> None:
        """Run the sequence with ``trunk``, and behind it what else is wanted or guessed."""
        context = self._context
        self._move([*self._base, *trunk])
        tree = DraftTree()
        for path in paths:
            tree.extend(ROOT, path[len(trunk) :])
        if stage is not None and place is not None and most > 0:
            tree = self._fitting(stage.guess(context, place, most), trunk)
        tokens = tree.token_tree() if len(tree) else None
        self._rows[trunk] = context.laws(1, tokens, again=True)[-1]
        ahead = context.ahead
        if tokens is None or ahead is None or ahead.start != len(context):
            if stage is not None:
                stage.told(len(context), DraftTree(), self._rows[trunk][None])
            return
        for node in range(len(tree)):
            path = tuple(tree.prefix(node))
            row = ahead.law(path)
            if row is not None:
                self._rows[(*trunk, *path)] = on_host(row)
        if stage is not None:
            stage.told(len(context), tree, ahead.rows)

    def _fitting(self, tree: DraftTree, trunk: TokenPath) -> DraftTree:
        """What of a guess the model can read."""
        if self.fits((*trunk, *([0] * tree.depth()))):
            return tree
        return tree.kept(node for node in range(len(tree)) if self.fits((*trunk, *tree.prefix(node))))

    def _move(self, tokens: list[int]) -> None:
        """Stand behind ``tokens`` with something to run; what was looked at of them is taken over."""
        context = self._context
        held = context.tokens
        common = common_length(held, tokens)
        if common < len(held):
            context.truncate(common)
        context.append(tokens[common:])
        if not context.unseen:
            context.prepare()


def check_capacity(model: LanguageModel, length: int) -> None:
    """Refuse a prompt that a draft model cannot read.

    Raises:
        GenerationError: it has ``length`` tokens, and the model's context no room for one more.
    """
    if model.max_context is not None and length >= model.max_context:
        raise GenerationError(
            f"draft model {model.name!r}",
            "it cannot read the prompt",
            evidence=f"{length} tokens do not fit its context of {model.max_context}",
            remedy="let it read a part of the prompt: ShortContext(model=...)",
        )


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences share from the beginning on; slices are compared, so long ones cost little."""
    low, high = 0, min(len(first), len(second))
    step = 512
    while low < high and list(first[low : low + step]) == list(second[low : low + step]):
        low += step
    low = min(low, high)
    while low < high and first[low] == second[low]:
        low += 1
    return low
