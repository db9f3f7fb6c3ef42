"""Reading a schema: JSON text, dialects, documents, locations and references."""
