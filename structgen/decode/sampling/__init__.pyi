"""Samplers of whole outputs: sequential Monte Carlo and others.  Names are imported when they are first used.

``Beam`` and ``BestOf`` belong to the catalogue; they stay listed here; ``structgen.samplers`` has them too.
"""

from structgen.decode.sample import sample
from structgen.decode.sampling.branch import Branch
from structgen.decode.sampling.branch_set import Branches
from structgen.decode.sampling.proposal import AWRS, Proposal, Proposed, Resampling, resample
from structgen.decode.sampling.protocol import Problem, Round, Sample, Samples, SequenceSampler
from structgen.decode.sampling.sampler_run import run_sampler
from structgen.decode.sampling.smc import SMC
from structgen.methods.samplers.beam import Beam
from structgen.methods.samplers.best_of import BestOf

__all__ = [
    "AWRS",
    "SMC",
    "Beam",
    "BestOf",
    "Branch",
    "Branches",
    "Problem",
    "Proposal",
    "Proposed",
    "Resampling",
    "Round",
    "Sample",
    "Samples",
    "SequenceSampler",
    "resample",
    "run_sampler",
    "sample",
]
