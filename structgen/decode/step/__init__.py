"""One step of decoding.

The context, its logits, the distribution over allowed tokens, the sampler and the result. Read this first.
"""
