"""Rules between the values of a JSON document while it is generated."""
