"""The examples of the pages on drafts run."""

from __future__ import annotations

import warnings

import pytest
from docs_run import PageRun, run_page

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel

WRITES = (
    '{"name": "Ada Lovelace", "email": "ada@example.org", "profession": "mathematician", '
    '"item": "3 lamps", "quantity": 3}'
)


@pytest.mark.exhaustive
def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs by itself on a hash model, and gives the documented output; no drafter fails."""
    model = HashModel(json_vocabulary, writes=WRITES)
    short = HashModel(json_vocabulary, writes="Ada Lovelace, 3 lamps")

    def after(names: PageRun) -> None:
        if "again" in names:
            plain, result, again = (names[name] for name in ("plain", "result", "again"))
            assert plain.text == WRITES
            assert plain.tokens == result.tokens
            assert plain.stats.forwards > result.stats.forwards > again.stats.forwards
            assert result.stats.drafts.sources["prompt lookup"].accepted

    def before(number: int) -> None:
        monkeypatch.setattr(structgen, "load_model", lambda: short if number else model, raising=False)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guide = run_page("guides/drafts.md", before=before, after=after)
        names = run_page("reference/speculative.md")
        own = run_page("guides/own-drafter.md")
    assert "again" in guide
    assert names["chosen"].tokens == names["alone"].tokens
    assert names["block"].stats.drafted
    assert own["filled"].stats.drafts.sources["template"].accepted
    assert (guide.blocks, names.blocks, own.blocks) == (2, 2, 1)
