"""The job `convert`."""
