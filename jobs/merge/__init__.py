"""The job `merge`."""
