"""The arguments of a call between tags, as models write them whose calls are not JSON.

A style says how members are spelled: ``<parameter=name>value</parameter>``, and so on.  Strings are written raw: their
text has no escapes and ends before the mark that closes the value.  Other values are JSON of their schemas; the styles
of Cohere and MiniMax M3 write arrays and objects with tags too.  Reading order: ``style``, ``writing``, ``reading``.

Sources: the chat templates of the models, and ``xgrammar/structural_tag.py``, whose names of styles these are.
"""

from structgen.frontends.xml_arguments.reading import read_xml_arguments, scan_xml_arguments
from structgen.frontends.xml_arguments.style import STYLES, style_named
from structgen.frontends.xml_arguments.writing import Spacing, known_xml_arguments, xml_arguments, xml_term

__all__ = [
    "STYLES",
    "Spacing",
    "known_xml_arguments",
    "read_xml_arguments",
    "scan_xml_arguments",
    "style_named",
    "xml_arguments",
    "xml_term",
]
