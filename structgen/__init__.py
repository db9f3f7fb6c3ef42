"""Say what a language model may write; every decoder reads the same automaton.

The public names are imported when they are first used, so that ``import structgen`` costs almost nothing and loads
neither numpy nor torch.  ``__init__.pyi`` lists them: the core names, the named modules (``structgen.samplers``,
``structgen.drafters``, ...), and the names that have moved into one of these.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036  where pip, which refuses, was not asked
    version = sys.version.split()[0]
    raise ImportError(f"structgen: Python 3.11 or newer is needed; {sys.executable} is {version}; use a newer one")

from structgen.lazy import find_moved_modules, lazy_names

__all__ = [
    "Autoregressive",
    "Constraint",
    "Grammar",
    "Greedy",
    "Limits",
    "Matcher",
    "Multinomial",
    "Result",
    "Unmasking",
    "Vocabulary",
    "cache_limits",
    "clear_caches",
    "compile",
    "ebnf",
    "extract",
    "fill_masks",
    "gbnf",
    "generate",
    "infill",
    "json_schema",
    "lark",
    "literal",
    "load",
    "load_diffusion_model",
    "load_model",
    "memory",
    "optional",
    "program",
    "regex",
    "sample",
    "select",
    "structural_tag",
]

__getattr__, __dir__ = lazy_names(__name__, __file__, kept=__all__, distribution="structgen-lm")
find_moved_modules()
