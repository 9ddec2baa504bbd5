"""Compaction in several tasks: splits are walked, settled by key hash, and rewritten."""
