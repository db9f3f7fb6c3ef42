"""A remote model without a server."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from structgen.program import Loss
from structgen.program.backends.remote_answer import Ending

__all__ = ["Scripted"]


class Scripted:
    """Gives the scripted answers, in pieces."""

    name = "scripted"

    def __init__(
        self, *texts: str, tries: int = 3, piece: int = 3, finish: Any = "stop", losses: tuple[Loss, ...] = ()
    ) -> None:
        self.losses = losses
        self.texts = list(texts)
        self.tries = tries
        self.piece = piece
        self.finish = finish
        self.prompts: list[Any] = []
        self.seeds: list[int] = []
        self.closed = 0

    def serve(self, prompt: Any, answer: Any, *, max_tokens: int, sampler: Any, seed: int) -> Generator[str, None, Any]:
        self.prompts.append(prompt)
        self.seeds.append(seed)
        text = self.texts.pop(0)
        try:
            for at in range(0, len(text), self.piece):
                yield text[at : at + self.piece]
        finally:
            self.closed += 1
        return Ending(self.finish, 5, len(text), self.losses)
