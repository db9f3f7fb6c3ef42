"""Drafts by heads that were trained to look ahead."""
