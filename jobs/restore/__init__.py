"""The job `restore`."""
