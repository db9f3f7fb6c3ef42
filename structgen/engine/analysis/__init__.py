"""Questions about the language of a grammar.

Its byte graph, inclusion in another language, counting and uniform sampling of its strings.
"""
