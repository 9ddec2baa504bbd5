"""Encoder of records' columns, and writer of a segment."""
