"""Stores of drafters hold no reference to a vocabulary, so that they end with it."""

from __future__ import annotations

import gc
import weakref

import pytest

from structgen.decode.speculative.drafters.likely_tokens import NGramTable
from structgen.decode.speculative.drafters.token_recycling import Successors
from structgen.engine import Vocabulary
from structgen.methods.drafters.lookahead import PhrasePool
from structgen.methods.drafters.ngram_tables import Trials


@pytest.mark.exhaustive
def test_stores_do_not_keep_a_vocabulary_alive() -> None:
    vocabulary = Vocabulary([b"", b"p", b"q"], eos=[0])
    successors, distributions, pool, trials = Successors(), NGramTable(), PhrasePool(), Trials()
    successors.learn(vocabulary, [(1, [2])])
    distributions.learn(vocabulary, [((1,), [2], [0.0])])
    pool.add(vocabulary, [(1, 2)])
    trials.record(vocabulary, (1,), [2], 2)
    gone = weakref.ref(vocabulary)
    del vocabulary
    gc.collect()
    assert gone() is None
    again = Vocabulary([b"", b"p", b"q"], eos=[0])  # equal content: what was learned is there
    assert successors.after(again, 1) == [2]
    assert distributions.find(again, (1,))[0].tokens == [2]
    assert pool.after(again, 1) == [(2,)]
    assert trials.of(again, (1,)) == {2: (1.0, 1.0)}
