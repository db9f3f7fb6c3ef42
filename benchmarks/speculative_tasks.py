"""What the benchmark of drafts lets the model write: documents to extract from, edits to ask again, and prose."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

__all__ = ["EXTRACTIONS", "PROSE", "Extraction", "edited"]


class Extraction(NamedTuple):
    """A document and the fields that are copied from it.

    Attributes:
        name: short.
        text: the document.
        schema: of what is extracted.
        edit: a word of the document and what it is changed to when it is asked again.
    """

    name: str
    text: str
    schema: dict[str, Any]
    edit: tuple[str, str]

    @property
    def prompt(self) -> str:
        """What the model is asked."""
        return f"Extract the fields from this text, word for word, as JSON.\n\n{self.text}"


def edited(task: Extraction) -> Extraction:
    """The same request with one word of the document changed."""
    before, after = task.edit
    return task._replace(text=task.text.replace(before, after, 1))


def _record(**fields: str | list[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, kind in fields.items():
        if isinstance(kind, list):
            properties[name] = {"enum": kind}
        elif kind == "texts":
            properties[name] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4}
        else:
            properties[name] = {"type": kind}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


EXTRACTIONS: Final = (
    Extraction(
        "letter",
        "From: Margaret Hollingsworth <margaret.hollingsworth@northernlights.example>\n"
        "Subject: Delivery of the oak bookcase to 14 Harbour Street\n\n"
        "Dear Sir or Madam, the oak bookcase that I ordered on 3 February has not arrived at 14 Harbour Street, "
        "Whitby. Please telephone me on +44 1947 555 0137. Yours faithfully, Margaret Hollingsworth",
        _record(sender="string", email="string", subject="string", address="string", telephone="string"),
        ("oak bookcase", "walnut bookcase"),
    ),
    Extraction(
        "conference",
        "Title: Sampling from Language Models under Hard Constraints\n"
        "Speaker: Professor Ingrid Bergstrom\nAffiliation: Department of Computer Science, University of Uppsala\n"
        "Room: Lecture Hall 4, Building 7\nAbstract: We show how a language model can be made to write only what a "
        "grammar allows, and how the probability of the result can still be computed exactly.",
        _record(title="string", speaker="string", affiliation="string", room="string", abstract="string"),
        ("Lecture Hall 4", "Lecture Hall 9"),
    ),
    Extraction(
        "invoice",
        "Invoice number: INV-2024-00417\nCustomer: Bergmann & Sons Hardware Ltd\n"
        "Billing address: 221 Commercial Road, Portsmouth PO1 4BE\nItem: 12 brass door handles, model Kensington\n"
        "Reference: purchase order PO-88213-B\nTerms: payable within thirty days of receipt",
        _record(
            invoice_number="string",
            customer="string",
            billing_address="string",
            item="string",
            reference="string",
            terms="string",
        ),
        ("INV-2024-00417", "INV-2024-00592"),
    ),
    Extraction(
        "recipe",
        "Name: Grandmother's Apricot Dumplings\nOrigin: Lower Austria\n"
        "Ingredients: potatoes, flour, semolina, apricots\n"
        "Method: Boil the potatoes, press them while they are hot, and knead them with flour and semolina into a "
        "smooth dough. Wrap each apricot in dough and simmer for twelve minutes.\nServes: four people",
        _record(name="string", origin="string", ingredients="texts", method="string", serves="string"),
        ("twelve minutes", "fifteen minutes"),
    ),
    Extraction(
        "patent",
        "Patent: Method and apparatus for drying seaweed in moving air\nInventors: Haruka Matsumoto, Diego Fernandez\n"
        "Assignee: Pacific Kelp Industries Incorporated\nFiled: 17 September 2019\n"
        "Claim: A method in which wet seaweed is conveyed through a tunnel against a stream of air whose humidity is "
        "kept below forty percent.",
        _record(patent="string", inventors="texts", assignee="string", filed="string", claim="string"),
        ("forty percent", "thirty percent"),
    ),
    Extraction(
        "incident",
        "Incident report 7731. Service: payments-gateway-eu-west. Severity: critical. "
        "Summary: Connections to the card processor timed out after the certificate of the proxy had expired. "
        "Resolution: The certificate was renewed and an alert was added for certificates that expire within two weeks. "
        "Owner: Oluwaseun Adebayo",
        _record(
            service="string",
            severity=["minor", "major", "critical"],
            summary="string",
            resolution="string",
            owner="string",
        ),
        ("two weeks", "four weeks"),
    ),
    Extraction(
        "museum",
        "Object: Astrolabe of engraved brass\nMaker: Muhammad ibn Ahmad al-Battuti\nPlace: Fez, Morocco\n"
        "Period: early eighteenth century\nDescription: Five plates, each engraved for two latitudes, under a rete "
        "with pointers for twenty-seven stars.\nAccession: 1912.04.337",
        _record(
            object="string", maker="string", place="string", period="string", description="string", accession="string"
        ),
        ("twenty-seven stars", "thirty-one stars"),
    ),
    Extraction(
        "job",
        "Position: Senior Structural Engineer\nCompany: Aurelian Bridge Consultants\nLocation: Rotterdam, Netherlands\n"
        "Contact: recruitment@aurelian-bridges.example\nRequirements: ten years of experience with steel bridges, "
        "chartered status, fluent Dutch and English\nBenefits: company bicycle, five weeks of leave",
        _record(
            position="string",
            company="string",
            location="string",
            contact="string",
            requirements="string",
            benefits="string",
        ),
        ("ten years", "eight years"),
    ),
    Extraction(
        "review",
        "Product: Meridian cordless kettle\nReviewer: tea_lover_1984\nRating: good\n"
        "Verdict: It boils a litre in under three minutes and hardly makes a sound, but the lid is stiff and the "
        "markings inside are hard to read.\nRecommended for: small kitchens and quiet mornings",
        _record(
            product="string",
            reviewer="string",
            rating=["poor", "fair", "good", "excellent"],
            verification="string",
            recommended_for="string",
        ),
        ("three minutes", "two minutes"),
    ),
    Extraction(
        "trial",
        "Study: Effect of evening light on sleep in shift workers\n"
        "Sponsor: Institute for Occupational Health, Tampere\n"
        "Design: randomised, two parallel groups, eight weeks\nPrimary outcome: minutes of sleep a day, measured by "
        "actigraphy\nContact: Dr Elina Virtanen, elina.virtanen@ioh.example",
        _record(study="string", sponsor="string", design="string", primary_outcome="string", contact="string"),
        ("eight weeks", "twelve weeks"),
    ),
)

PROSE: Final = (
    "Explain in one paragraph why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Describe how bread is made, in your own words.",
    "What makes a good teacher? Answer in a few sentences.",
)
