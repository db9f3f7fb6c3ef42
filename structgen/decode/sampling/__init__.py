"""Sampling whole outputs: sequential Monte Carlo and its relatives."""

from structgen.decode.sampling.asap import ASAp
from structgen.decode.sampling.beam import Beam
from structgen.decode.sampling.best_of import BestOf
from structgen.decode.sampling.branches import Branch, Branches
from structgen.decode.sampling.exact_best import ExactBest
from structgen.decode.sampling.lookahead import Lookahead
from structgen.decode.sampling.ngram import NGram
from structgen.decode.sampling.prefix_trie import PrefixTrie
from structgen.decode.sampling.problem import Problem
from structgen.decode.sampling.proposal import AWRS, Proposal, Proposed
from structgen.decode.sampling.rejection_trie import RejectionTrie
from structgen.decode.sampling.resampling import Resampling, resample
from structgen.decode.sampling.sample import run_sampler, sample
from structgen.decode.sampling.samples import Round, Sample, Samples
from structgen.decode.sampling.sequence_sampler import SequenceSampler
from structgen.decode.sampling.smc import SMC

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
