"""Indexes and snapshots: rebuilt from the log and compared with the existing files. See REINDEX.md."""
