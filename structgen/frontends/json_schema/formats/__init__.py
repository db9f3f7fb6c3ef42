"""The values of ``format``: a language for each format that is asserted, and the formats that the caller defines."""
