"""Schedules by yield: which segments of a partition are worth their rewrite, and when a run is worth its reading."""
