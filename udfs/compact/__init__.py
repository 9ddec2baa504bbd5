"""Compaction of one partition: plan, scan, analysis, cleaning, output. See COMPACTION.md."""
