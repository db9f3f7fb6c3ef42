"""The types of JSON as bits of a set."""

from __future__ import annotations

from typing import Final

__all__ = ["ANY", "ARRAY", "BOOLEAN", "FRACTION", "INTEGER", "NULL", "NUMBER", "OBJECT", "STRING"]

NULL: Final = 1
BOOLEAN: Final = 2
INTEGER: Final = 4
FRACTION: Final = 8  # numbers that are not integers
STRING: Final = 16
ARRAY: Final = 32
OBJECT: Final = 64
NUMBER: Final = INTEGER | FRACTION
ANY: Final = 127
