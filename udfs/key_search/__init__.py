"""Search for erased keys in files of any kind: logs, tables and bytes (docs/reference/erasure.md)."""
