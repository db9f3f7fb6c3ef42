"""Sampling whole outputs: sequential Monte Carlo and its relatives.

Names are imported when they are first used.
"""

from structgen.decode.sample import sample as sample
from structgen.decode.sampling.beam import Beam as Beam
from structgen.decode.sampling.best_first import ExactBest as ExactBest
from structgen.decode.sampling.best_of import BestOf as BestOf
from structgen.decode.sampling.branch import Branch as Branch
from structgen.decode.sampling.branch_set import (
    Branches as Branches,
    run_sampler as run_sampler,
)
from structgen.decode.sampling.ngram_lookahead import (
    Lookahead as Lookahead,
    NGram as NGram,
)
from structgen.decode.sampling.prefix_trie import PrefixTrie as PrefixTrie
from structgen.decode.sampling.proposal import (
    AWRS as AWRS,
    Proposal as Proposal,
    Proposed as Proposed,
    Resampling as Resampling,
    resample as resample,
)
from structgen.decode.sampling.protocol import (
    Problem as Problem,
    Round as Round,
    Sample as Sample,
    Samples as Samples,
    SequenceSampler as SequenceSampler,
)
from structgen.decode.sampling.smc import SMC as SMC
from structgen.decode.sampling.trie_sampler import (
    ASAp as ASAp,
    RejectionTrie as RejectionTrie,
)

__all__ = [
    "AWRS",
    "SMC",
    "ASAp",
    "Beam",
    "BestOf",
    "Branch",
    "Branches",
    "ExactBest",
    "Lookahead",
    "NGram",
    "PrefixTrie",
    "Problem",
    "Proposal",
    "Proposed",
    "RejectionTrie",
    "Resampling",
    "Round",
    "Sample",
    "Samples",
    "SequenceSampler",
    "resample",
    "run_sampler",
    "sample",
]
