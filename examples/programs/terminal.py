"""Streaming to a terminal: a form that fills in, each field marked once nothing that follows can change it.

On a terminal the form is drawn anew at each change; elsewhere, in a file or a pipe, each final field is one line.
"""

import sys
from typing import Literal

from pydantic import BaseModel, Field

import structgen as sg

MESSAGE = "Hello, Ines Kovac here. Two of our parcels are late, and I must have them before Friday. Please ring me!"


class Request(BaseModel):
    customer: str = Field(max_length=30)
    subject: Literal["delivery", "payment", "product"]
    is_urgent: bool
    parcels: int = Field(ge=0, le=20)
    answer_by: Literal["phone", "mail"]


@sg.program(max_tokens=100)
def request(message: str) -> Request:
    """Fill in the form for this message.

    {message}"""


class Form:
    """The fields of an answer as they are known so far."""

    def __init__(self, names: list[str]) -> None:
        self.is_drawn_anew = sys.stdout.isatty()
        self.values = dict.fromkeys(names, "")
        self.final: set[str] = set()
        if self.is_drawn_anew:
            print("\n" * len(names), end="")

    def show(self, name: str, value: str, *, is_final: bool) -> None:
        """Change one field."""
        self.values[name] = value
        if is_final:
            self.final.add(name)
        else:
            self.final.discard(name)
        if self.is_drawn_anew:
            lines = "".join(f"\x1b[2K{self._line(each)}\n" for each in self.values)  # each emptied, then written
            print(f"\x1b[{len(self.values)}F{lines}", end="", flush=True)  # from the first line of the form on
        elif is_final:
            print(self._line(name), flush=True)

    def _line(self, name: str) -> str:
        return f"[{'x' if name in self.final else ' '}] {name:10} {self.values[name]}"


if __name__ == "__main__":
    form = Form(list(Request.model_fields))
    name, begun = "", ""  # of the field that is being written
    for event in request.stream(MESSAGE):
        if event.kind == "field_started":
            name, begun = event.name, ""
        elif event.kind == "field_final":
            form.show(event.name, repr(event.value), is_final=True)
            name = ""
        elif event.kind == "text" and name in form.values:
            begun += event.text
            form.show(name, begun, is_final=False)
        elif event.kind == "done":
            print(event.run.value)
