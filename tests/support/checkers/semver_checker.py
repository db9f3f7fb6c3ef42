"""Semantic Versioning: the package ``semver``."""

from __future__ import annotations

import random
from collections.abc import Iterator

from checked_language import Language, everything, problem_of
from semver import Version


def documents(rng: random.Random) -> Iterator[str]:
    words = ["alpha", "beta", "rc", "x-y", "0", "1", "20", "dev", "nightly", "0a", "g1f3d", "pre"]
    builds = [*words, "001", "20130313144700", "exp", "sha", "5114f85", "---"]
    while True:
        version = Version(rng.randint(0, 30), rng.randint(0, 30), rng.choice((0, 1, 20, 20240131)))
        if rng.random() < 0.5:
            version = version.replace(prerelease=".".join(rng.choices(words, k=rng.randint(1, 4))))
        if rng.random() < 0.5:
            version = version.replace(build=".".join(rng.choices(builds, k=rng.randint(1, 4))))
        yield str(version)


LANGUAGE = Language(problem_of(Version.parse, ValueError), documents, everything)
