"""Attacks: what is tried is drawn and counted, and one summary says how much it was. See `summary`."""
