"""Samplers choose tokens, or whole outputs; each says which distribution it targets."""

from structgen.decode.sampling.beam import Beam as Beam
from structgen.decode.sampling.best_first import ExactBest as ExactBest
from structgen.decode.sampling.best_of import BestOf as BestOf
from structgen.decode.sampling.ngram_lookahead import (
    Lookahead as Lookahead,
    NGram as NGram,
)
from structgen.decode.sampling.proposal import AWRS as AWRS
from structgen.decode.sampling.protocol import Samples as Samples
from structgen.decode.sampling.smc import SMC as SMC
from structgen.decode.sampling.trie_sampler import (
    ASAp as ASAp,
    RejectionTrie as RejectionTrie,
)
from structgen.decode.step.sampler import (
    Greedy as Greedy,
    Multinomial as Multinomial,
    Sampler as Sampler,
)

__all__ = [
    "AWRS",
    "SMC",
    "ASAp",
    "Beam",
    "BestOf",
    "ExactBest",
    "Greedy",
    "Lookahead",
    "Multinomial",
    "NGram",
    "RejectionTrie",
    "Sampler",
    "Samples",
]
