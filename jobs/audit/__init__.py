"""`audit`: questions about keys, answered by Spark from a table of what logs hold (docs/reference/audits.md)."""
