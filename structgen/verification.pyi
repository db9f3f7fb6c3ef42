"""Verifiers accept or reject draft tokens so that the output follows the distribution of the target model."""

from structgen.decode.speculative.verifier import ChainVerifier, IndependentRejection, RecursiveRejection, Verifier
from structgen.methods.verifiers.acceptance_rules import Judge, KSequential, TypicalAcceptance
from structgen.methods.verifiers.tree_verification import BlockVerification, ChainSampling

__all__ = [
    "BlockVerification",
    "ChainSampling",
    "ChainVerifier",
    "IndependentRejection",
    "Judge",
    "KSequential",
    "RecursiveRejection",
    "TypicalAcceptance",
    "Verifier",
]
