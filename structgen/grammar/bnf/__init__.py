"""What GBNF (llama.cpp) and EBNF (xgrammar) have in common: ``name ::= expression`` with the operators of regexps.

Reading order: ``notation`` (in what the two differ), ``scanner`` (text to tokens), ``characters`` (escapes and
classes), ``parser`` (tokens to terms), ``rules`` (what they define).
"""
