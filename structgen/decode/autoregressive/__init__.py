"""The autoregressive loop, one file a stage: allowed tokens, forward passes, choice, output."""
