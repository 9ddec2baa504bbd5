"""The cleaning of one partition in one task: scan, decide, rewrite, read back."""
