"""Verifiers accept or reject draft tokens so that the output follows the distribution of the target model."""

from structgen.decode.speculative.verifier import (
    ChainVerifier as ChainVerifier,
    IndependentRejection as IndependentRejection,
    RecursiveRejection as RecursiveRejection,
    Verifier as Verifier,
)
from structgen.methods.verifiers.chain_verification import (
    BlockVerification as BlockVerification,
    ChainSampling as ChainSampling,
)
from structgen.methods.verifiers.k_sequential import KSequential as KSequential
from structgen.methods.verifiers.relaxed_acceptance import (
    Judge as Judge,
    TypicalAcceptance as TypicalAcceptance,
)

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
