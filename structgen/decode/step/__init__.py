"""One step of decoding: the context, its logits, the distribution over allowed tokens, the sampler, the result."""
