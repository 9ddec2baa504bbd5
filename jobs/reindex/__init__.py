"""The job `reindex`."""
