"""Keys and values on Arrow columns: Avro, text, numbers; the default partitioner."""
