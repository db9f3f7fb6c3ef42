"""The events of a program while it runs.

Events, and the fields of a JSON answer validated as soon as they are complete.
"""
