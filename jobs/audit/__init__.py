"""`audit`: questions about keys, answered by Spark from a table of all records (docs/reference/audits.md)."""
