"""A drafter for ``--speculative-config`` that makes vLLM ask the grammar for drafts at every step.

vLLM lets the grammar see drafts only where its drafter has some.  This one copies what followed an earlier occurrence
of the last tokens, and otherwise proposes one placeholder token, which the grammar replaces by forced text or drops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ForcedText", "copied"]

_LONGEST, _SHORTEST = 4, 2
"""How many tokens must agree for the tokens after them to be copied."""
_WINDOW: Final = 4096
"""How far back they are looked for."""
PLACEHOLDER: Final = 0


@final
class ForcedText:
    """``{"method": "custom_class", "model": "structgen.integrations.vllm.proposer.ForcedText"}``.

    Requests without a constraint are drafted by copies alone.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._most = int(vllm_config.num_speculative_tokens)

    def load_model(self, target_model: object) -> None:
        """There is none."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.integer[Any]],
        token_ids_cpu: NDArray[np.integer[Any]],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return the drafts of each row; none where nothing was sampled.

        Complexity: each row is compared with its last 4,096 tokens, up to three times.
        """
        del slot_mappings
        found: list[list[int]] = []
        for row, sampled in enumerate(sampled_token_ids):
            drafts: list[int] = []
            if sampled:
                end = int(num_tokens_no_spec[row])
                drafts = copied(token_ids_cpu[row, max(0, end - _WINDOW) : end], self._most) or [PLACEHOLDER]
            found.append(drafts)
        return found


def copied(tokens: NDArray[np.integer[Any]], most: int) -> list[int]:
    """Return up to ``most`` tokens that followed the latest earlier occurrence of the last tokens, the longest first.

    >>> copied(np.array([7, 1, 2, 3, 9, 1, 2, 3]), 2)
    [9, 1]
    """
    count = len(tokens)
    for length in range(min(_LONGEST, count - 1), _SHORTEST - 1, -1):
        starts = np.ones(count - length, dtype=np.bool_)
        for at in range(length):
            starts &= tokens[at : at + count - length] == tokens[count - length + at]
        places = np.flatnonzero(starts)
        if len(places):
            begin = int(places[-1]) + length
            return [int(token) for token in tokens[begin : begin + most]]
    return []
