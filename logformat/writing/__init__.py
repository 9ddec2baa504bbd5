"""Columns of records written as a segment."""
