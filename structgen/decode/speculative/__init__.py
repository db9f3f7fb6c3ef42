"""Speculative decoding: tokens that are guessed, and told right or wrong by one forward pass over all of them."""
