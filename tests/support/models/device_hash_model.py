"""A model without weights whose logits stay in torch, as they do on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from structgen.models.protocol import Extension, Logits, ResidentLogits
from structgen.models.protocol.tree import TokenTree
from structgen.models.torch_logits import Residence, TorchLogits
from structgen.models.toy.hash import HashModel, HashSession

__all__ = ["ResidentHashModel", "ResidentHashSession"]


class ResidentHashModel(HashModel):
    """A ``HashModel`` with logits in torch; the distributions are the same.

    Args:
        branches: whether its sessions run trees, or only chains.
        spoil: a function that changes the logits, ``[n, V]``.
        settings: of the ``HashModel``.
    """

    def __init__(
        self, *args: Any, branches: bool = True, spoil: Callable[[Logits], Logits] | None = None, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.branches = branches
        self.spoil = spoil
        self.residence = Residence()

        self.passes = 0  # of several sequences

    @property
    def is_resident(self) -> bool:
        return True

    def start(self) -> ResidentHashSession:
        return ResidentHashSession(self)

    def extend_many_resident(self, extensions: Sequence[Extension], /) -> list[ResidentLogits]:
        self.passes += 1
        found = []
        for session, token_ids, all_positions, tree in extensions:
            assert isinstance(session, ResidentHashSession)
            session.check(token_ids, tree)
            found.append(session.extend_resident(token_ids, all_positions=all_positions, tree=tree))
        return found


class ResidentHashSession(HashSession):
    model: ResidentHashModel

    @property
    def can_branch(self) -> bool:
        return self.model.branches

    @property
    def is_resident(self) -> bool:
        return True

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        if tree is not None:
            rows = self.extend_tree(token_ids, tree, all_positions=all_positions)
        else:
            rows = self.extend_all(token_ids) if all_positions else self.extend(token_ids)[None]
        if self.model.spoil is not None:
            rows = self.model.spoil(rows)
        return TorchLogits(self.model.residence, torch.from_numpy(rows))
