"""Analysis of the language of a grammar: byte graph, inclusion, counting and uniform sampling of its strings."""
