"""Programs: typed functions and generators that a language model answers.

``structgen.program`` is this package and the decorator, whichever was asked for first: the package can be called.
"""

import sys
from types import ModuleType
from typing import Any

from structgen.program.answer import Answer, answer_of
from structgen.program.commands import Ask, Branch, ask, assistant, fork, system, user
from structgen.program.definition import Program, program
from structgen.program.events import Done, Event, FieldFinal, FieldStarted, ObjectFinal, Retracted, Text
from structgen.program.fields import path_text
from structgen.program.mapping import Mapped
from structgen.program.remote import RemoteModel
from structgen.program.run import FieldScore, Loss, Outcome, Run, Served, Violation

__all__ = [
    "Answer",
    "Ask",
    "Branch",
    "Done",
    "Event",
    "FieldFinal",
    "FieldScore",
    "FieldStarted",
    "Loss",
    "Mapped",
    "ObjectFinal",
    "Outcome",
    "Program",
    "RemoteModel",
    "Retracted",
    "Run",
    "Served",
    "Text",
    "Violation",
    "answer_of",
    "ask",
    "assistant",
    "fork",
    "path_text",
    "program",
    "system",
    "user",
]


class _Package(ModuleType):
    def __call__(self, *args: Any, **settings: Any) -> Any:
        """See ``structgen.program.definition.program``."""
        return program(*args, **settings)


sys.modules[__name__].__class__ = _Package
