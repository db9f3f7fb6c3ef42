"""The catalogue: published decoding methods that the core does not need.

The core never imports it; the command line and the integrations may.
"""
