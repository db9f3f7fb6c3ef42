"""Streaming: each field is shown as soon as nothing that follows can change it."""

from typing import Literal

from pydantic import BaseModel, Field

import structgen as sg


class Ticket(BaseModel):
    customer: str = Field(max_length=30)
    urgency: Literal["low", "medium", "high"]
    parts: list[str] = Field(max_length=3)
    days: int = Field(ge=1, le=30)


@sg.program(max_tokens=120)
def ticket(message: str) -> Ticket:
    """Make a ticket of this message.

    {message}"""


if __name__ == "__main__":
    written = ""
    for event in ticket.stream("Smith here: the pump and the valve of unit 7 leak badly, please come within 2 days!"):
        if event.kind == "text":
            written += event.text
        if event.kind == "field_final":
            print(f"{event.name} = {event.value!r}   after {len(written)} characters")
    print(written)
