"""Readers of tokenizers: each turns one format into a table of exact bytes.

``source`` decides which reader a source belongs to; every reader returns a ``TokenTable``.  A reader imports
the library of its format when it is called, never before.
"""
