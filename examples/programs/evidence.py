"""Extraction with evidence: every text of the answer is quoted from the document, with its place."""

from pydantic import BaseModel, Field

import structgen as sg

DOCUMENT = (
    "The meeting was opened by Dr. Amara Obi at nine. Lars Berg presented the budget of the harbour extension; "
    "the council voted in favour, and construction begins in March."
)


class Meeting(BaseModel):
    opened_by: str = Field(description="who opened the meeting")
    subject: str = Field(max_length=60, description="what was voted on")
    approved: bool


if __name__ == "__main__":
    run = sg.extract.run(Meeting, DOCUMENT)
    print(run.value)
    for quotation in run.evidence:
        print(f"{quotation.path[-1]}: characters {quotation.start} to {quotation.end}: {quotation.text!r}")
