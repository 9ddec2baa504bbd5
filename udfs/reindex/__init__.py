"""Indexes and snapshots made anew and judged. See REINDEX.md."""
