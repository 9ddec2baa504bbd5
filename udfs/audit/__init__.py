"""Entries of keys and records of logs, and the questions of audits about them."""
