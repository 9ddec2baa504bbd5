"""Dump of log files, and of the files beside them, as lines of text in the form of kafka-dump-log."""
