"""The text form of the grammar IR: printer, reader and their spelling of strings, names and classes."""
