"""Readers of tokenizers: each turns one format into a table of exact bytes.

``reader`` chooses the reader for a source; every reader returns a ``TokenTable``.  A reader imports the library of its
format only when it is called.
"""
