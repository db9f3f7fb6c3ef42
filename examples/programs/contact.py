"""Contact extraction: a typed function over free text."""

from pydantic import BaseModel, Field

import structgen as sg


class Contact(BaseModel):
    """Somebody to write to."""

    name: str = Field(max_length=40, description="first and last name")
    email: str = Field(pattern=r"^[a-z0-9._-]{1,30}@[a-z0-9-]{1,20}\.[a-z]{2,6}$")
    phone: str | None = Field(default=None, pattern=r"^\+?[0-9 ]{5,20}$")


@sg.program(max_tokens=120)
def contact(text: str) -> Contact:
    """Who should be contacted, and how?

    {text}
    """


if __name__ == "__main__":
    run = contact.run("Please write to Grace Hopper, grace@navy.mil, or call +1 555 0100.")
    print(run.value.model_dump_json(indent=2))
    for name, field in run.fields.items():
        print(f"{name or 'all'}: probability {field.probability:.2f}")
