"""The command line in, the report out."""
