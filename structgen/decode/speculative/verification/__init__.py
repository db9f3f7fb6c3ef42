"""Verifiers: what makes of guesses a draw from the target's own law."""

from structgen.decode.speculative.verification.block_verification import BlockVerification
from structgen.decode.speculative.verification.chain_sampling import ChainSampling
from structgen.decode.speculative.verification.k_sequential import KSequential
from structgen.decode.speculative.verification.recursive_rejection import IndependentRejection, RecursiveRejection
from structgen.decode.speculative.verification.relaxed_acceptance import Judge, TypicalAcceptance
from structgen.decode.speculative.verification.verifier import ChainVerifier, Verifier

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
