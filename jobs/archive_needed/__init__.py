"""The job `archive-needed`."""
