"""A log written in another message format."""
