"""What stores of drafters hold on to: no vocabulary, so that what is kept for one can end with it."""

from __future__ import annotations

import gc
import weakref

from structgen.decode.speculative.drafters.recycling.ngram_laws import NGramLaws
from structgen.decode.speculative.drafters.recycling.phrase_pool import PhrasePool
from structgen.decode.speculative.drafters.recycling.successors import Successors
from structgen.decode.speculative.drafters.recycling.trigrams import Trials
from structgen.engine import Vocabulary


def test_stores_do_not_keep_a_vocabulary_alive() -> None:
    vocabulary = Vocabulary([b"", b"p", b"q"], eos=[0])
    successors, laws, pool, trials = Successors(), NGramLaws(), PhrasePool(), Trials()
    successors.learn(vocabulary, [(1, [2])])
    laws.learn(vocabulary, [((1,), [2], [0.0])])
    pool.add(vocabulary, [(1, 2)])
    trials.record(vocabulary, (1,), [2], 2)
    gone = weakref.ref(vocabulary)
    del vocabulary
    gc.collect()
    assert gone() is None
    again = Vocabulary([b"", b"p", b"q"], eos=[0])  # of the same content: what was learned is there
    assert successors.after(again, 1) == [2]
    assert laws.find(again, (1,))[0].tokens == [2]
    assert pool.after(again, 1) == [(2,)]
    assert trials.of(again, (1,)) == {2: (1.0, 1.0)}
