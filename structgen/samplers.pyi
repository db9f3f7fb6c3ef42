"""Samplers choose tokens, or whole outputs; each says which distribution it targets."""

from structgen.decode.sampling.proposal import AWRS
from structgen.decode.sampling.protocol import Samples
from structgen.decode.sampling.smc import SMC
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler
from structgen.methods.samplers.beam import Beam
from structgen.methods.samplers.best_first import ExactBest
from structgen.methods.samplers.best_of import BestOf
from structgen.methods.samplers.ngram_lookahead import Lookahead, NGram
from structgen.methods.samplers.trie_sampler import ASAp, RejectionTrie

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
