"""Python types as JSON Schemas, by way of pydantic, and grammars as annotations of types."""
