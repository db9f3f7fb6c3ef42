"""Drafters that count what came where the grammar stood alike."""
