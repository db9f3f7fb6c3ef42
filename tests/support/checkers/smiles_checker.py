"""SMILES: the package ``partialsmiles``; impossible valences are no fault of the notation."""

from __future__ import annotations

import random
from collections.abc import Iterator

import partialsmiles
from checked_language import Language

BRANCH_AT_THE_END = 4 | 8
"""Not wrong, but not canonical either: `CC(=O)` for `CC=O`."""


def problem(text: str) -> str | None:
    try:
        partialsmiles.ParseSmiles(text, partial=False, rulesToIgnore=BRANCH_AT_THE_END)
    except (partialsmiles.ValenceError, partialsmiles.KekulizationFailure):
        return None
    except partialsmiles.Error as error:
        return str(error)
    return None


def documents(rng: random.Random) -> Iterator[str]:
    """Molecules composed of the chains, rings and groups of organic chemistry."""
    groups = ["C", "O", "N", "CC", "C(=O)O", "C(=O)N", "C#N", "C(F)(F)F", "S(=O)(=O)N", "[N+](=O)[O-]", "OC", "C(C)C"]
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CC1", "c1c[nH]cc1", "C1COCCN1", "c1ccc2ccccc2c1", "C1CC2CC2CC1"]
    halogens = ["Cl", "Br", "F", "I", "O", "[O-]", "[NH3+]"]
    while True:
        parts = []
        for _ in range(rng.randint(1, 4)):
            part = rng.choice(groups if rng.random() < 0.5 else rings)
            branch = f"C({rng.choice(groups)}{rng.choice(rings)})" if rng.random() < 0.4 else ""
            parts.append(part + branch)
        text = "".join(parts) + rng.choice(halogens)
        if problem(text) is None:
            yield text


LANGUAGE = Language(problem, documents)
