"""Strings sampled uniformly by length: texts that random walks rarely write, since all texts are equally likely."""

from __future__ import annotations

import pytest
from checked_language import language
from grammar_library import folder

from structgen.engine.analysis.uniform_sampling import UniformStrings

QUICK = {"arithmetic": 10, "blocksworld_plan": 40, "cron": 14, "csv": 12, "email": 14, "iso_date": 26, "json": 12}
QUICK |= {"json_lines": 12, "pddl_plan": 20, "semver": 16, "smiles": 12, "toml": 16, "url": 20}
SIZES = [pytest.param(name, size, 200, id=name) for name, size in QUICK.items()]
SIZES += [
    pytest.param(name, size, 2000, id=f"{name}-{size}", marks=pytest.mark.nightly)
    for name in QUICK
    for size in (24, 48)
]


@pytest.mark.parametrize(("name", "size", "count"), SIZES)
def test_uniform_members_parse(name: str, size: int, count: int) -> None:
    """The parser of the language reads the samples, with and without control characters and other scripts."""
    known = language(name)
    for alphabet in ("printable", "any"):
        members = UniformStrings(folder(name).grammar, size, alphabet=alphabet)
        known.check([member.decode() for member in members.draw(count // 2, seed=5)])
