"""The job `compact`."""
