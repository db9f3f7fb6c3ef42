"""What is kept for ``canonical=True``: within a part of the bound on caches, and reported."""

from __future__ import annotations

import pytest
from split_tokenizers import split_vocabulary

import structgen as sg
from structgen import memory_cache
from structgen.engine import canonical as canonical_engine


def test_what_canonical_tokens_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vocabulary has the same part; a small one drops answers and masks, and finds the same again."""
    monkeypatch.setattr(memory_cache, "_megabytes", 8)
    monkeypatch.setattr(canonical_engine._KEPT, "live", memory_cache.Followed())
    tokens = canonical_engine.CanonicalTokens(split_vocabulary("qwen"))
    vocabulary = split_vocabulary("qwen")

    def masks() -> list[list[int]]:
        found = []
        for number in range(30):
            matcher, state = (
                sg.compile(sg.regex(f"[ab ]{{{number + 2}}}(it's|12)*"), vocabulary).matcher(),
                tokens.start,
            )
            for token in vocabulary.tokenize("ab" * (number // 2) + "ab" * (number % 2))[:12]:
                following = tokens.after(state, token)
                assert following is not None
                assert matcher.accept(token)
                state = following
                found += [tokens.allowed(matcher, state).row.tolist() for _ in range(2)]
        return found

    most = sg.cache_limits().bytes["canonical tokens"]
    assert most == (8 << 20) // 32
    expected = masks()
    held = sg.memory()["canonical tokens"]
    assert held.count == 1
    assert 10_000 < held.bytes == tokens.memory_bytes <= held.limit == most
    tokens.set_limit(5_000)
    assert tokens.memory_bytes <= 5_000
    assert masks() == expected
    other = canonical_engine.CanonicalTokens(split_vocabulary("llama"))  # both have half of the bound from here on
    assert sg.memory()["canonical tokens"].count == 2
    assert masks() == expected
    assert tokens.memory_bytes <= most // 2
    sg.clear_caches()
    assert sg.memory()["canonical tokens"].bytes == tokens.memory_bytes + other.memory_bytes < held.bytes
    assert masks() == expected
