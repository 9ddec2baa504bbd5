"""A `.log` file: chunks, headers, bodies, spans and columns of records, and a segment as a whole."""
