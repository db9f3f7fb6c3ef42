"""What the tests ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
QUESTION = "Name a city in France."
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
MOST = 60
"""Tokens of an answer: the model is slow."""


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=30)
    is_capital: bool


SCHEMA: dict[str, Any] = {"response_format": {"type": "json_object", "schema": City.model_json_schema()}}
"""For modes that tell the model its schema in words only: with this in the body, the server enforces it."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "population",
        "description": "How many people live in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
