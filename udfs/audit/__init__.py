"""Every record of a log as a row with its key and digests: what audits ask."""
