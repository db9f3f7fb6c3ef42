"""The parse of a complete output: the texts of its named parts, and its Python value."""
