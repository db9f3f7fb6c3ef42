"""From regexes, schemas, grammars and types to the IR: one package per notation, and loading by suffix."""
