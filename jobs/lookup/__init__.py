"""The job `lookup`, and the table `time_index`."""
