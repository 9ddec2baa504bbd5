"""The job `verify`."""
