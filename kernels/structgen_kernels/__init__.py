"""Everything below Python speed: the native engine."""
