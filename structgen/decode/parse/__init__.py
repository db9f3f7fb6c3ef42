"""The parse of a finished output: the values of its named parts, and the Python value that it stands for."""
