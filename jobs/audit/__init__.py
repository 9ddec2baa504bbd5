"""`audit`: questions about keys, answered by Spark from a table of all records. AUDIT.md explains how."""
