"""What a program reports while it runs.

Events, and the fields of a JSON answer validated as soon as they are complete.
"""
