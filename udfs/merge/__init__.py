"""Several copies of a partition, written as one log."""
