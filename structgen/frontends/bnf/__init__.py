"""GBNF (llama.cpp) and EBNF (xgrammar): ``name ::= expression`` with the operators of regular expressions."""
