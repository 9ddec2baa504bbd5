"""Profiles of partitions: their content, and what cleaning would leave of it."""
