"""Models without trained weights, for tests and examples: hash, n-gram and hidden Markov models."""
