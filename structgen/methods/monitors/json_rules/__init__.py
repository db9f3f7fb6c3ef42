"""Rules between the values of a JSON document that is being written."""
