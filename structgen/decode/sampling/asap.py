"""Grammar-aligned decoding: each output teaches what beginnings are worth, and the next one is drawn by it.

Source: K. Park, J. Wang, T. Berg-Kirkpatrick, N. Polikarpova and L. D'Antoni, "Grammar-Aligned Decoding" (NeurIPS 2024,
arXiv 2405.21047): adaptive sampling with approximate expected futures.  Beyond it, potentials have their futures too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.sampling.prefix_trie import PrefixTrie
from structgen.decode.sampling.samples import Samples
from structgen.decode.sampling.trie_walk import TrieWalks, check_trie_sampler, merged
from structgen.errors import GenerationError

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.sampling.branches import Branch, Branches

__all__ = ["ASAp"]


@final
@dataclass(frozen=True, slots=True)
class ASAp:
    """Adaptive sampling with approximate expected futures.

    The first output is one of locally constrained decoding.  The more outputs were drawn, the nearer the law of the
    next one is to the target: the model's law given the constraint, times the potentials.  Any number of them falls
    short of it; what they were drawn with is in no weight.

    Attributes:
        samples: how many outputs are returned.
        discard: how many are drawn before them, to learn from.
        trie: what was learned, to be kept between calls; None begins anew in each.
        batch: how many outputs are drawn side by side, which learn from the batches before them.
        score_bound: the most that the potentials give to any output.
        max_tries: how many outputs in a row may turn out to be forbidden by the potentials.

    Raises:
        ValueError: a number is out of range.
    """

    samples: int = 16
    discard: int = 0
    trie: PrefixTrie | None = None
    batch: int = 1
    score_bound: float = 0.0
    max_tries: int = 1000

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = False
    target: ClassVar[str] = "the model's law given the constraint, times the potentials, the more nearly the more drawn"

    def __post_init__(self) -> None:
        check_trie_sampler("ASAp", self.samples, self.batch, self.max_tries, self.score_bound)
        if not isinstance(self.discard, int) or self.discard < 0:
            raise ValueError(f"ASAp: discard must be an integer of at least 0; found {self.discard!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``.

        Raises:
            ValueError: the trie belongs to another problem.
            GenerationError: ``max_tries`` outputs in a row were forbidden, or a score is above ``score_bound``.
        """
        trie = PrefixTrie() if self.trie is None else self.trie
        walks = TrieWalks(branches, trie, generator, score_bound=self.score_bound, rejects=False)
        found: list[Branch] = []
        wanted = self.discard + self.samples
        in_vain = 0
        while len(found) < wanted and trie.root.log_success > -math.inf:
            if in_vain >= self.max_tries:
                raise _all_forbidden(branches, in_vain)
            tried = walks.run(min(self.batch, wanted - len(found)))
            drawn = [each for each in tried if each is not None]
            in_vain = 0 if drawn else in_vain + len(tried)
            found += drawn
        return branches.samples(merged(branches, found[self.discard :]), particles=self.samples)


def _all_forbidden(branches: Branches, count: int) -> GenerationError:
    return GenerationError(
        "ASAp",
        f"the potentials forbade {count} outputs in a row",
        evidence=branches.verdict,
        remedy="let potentials judge beginnings too (prefix, early), loosen them, or raise max_tries",
    )
