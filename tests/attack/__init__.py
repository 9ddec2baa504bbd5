"""Attacks: they draw and count their cases, and one summary shows how many they tried. See `summary`."""
