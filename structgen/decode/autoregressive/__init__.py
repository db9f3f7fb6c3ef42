"""The autoregressive loop, one file a stage.

What is allowed, what is forced, the forward pass, the choice, the output.
"""
