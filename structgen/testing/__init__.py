"""What a grammar means, stated slowly, and the laws that every matcher obeys.

For users too: run :func:`check_laws` on your own grammar and vocabulary.
"""

from structgen.testing.enumeration import byte_vocabulary, recursive, small_terms
from structgen.testing.languages import language
from structgen.testing.laws import LAWS, Effort, LawViolation, check_laws
from structgen.testing.potential_laws import check_potential
from structgen.testing.reference import ReferenceMatcher

__all__ = [
    "LAWS",
    "Effort",
    "LawViolation",
    "ReferenceMatcher",
    "byte_vocabulary",
    "check_laws",
    "check_potential",
    "language",
    "recursive",
    "small_terms",
]
