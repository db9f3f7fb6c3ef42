"""Models without trained weights, for tests and examples: by hash, by n-gram counts, by a hidden Markov chain."""
