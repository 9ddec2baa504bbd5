"""The way from survivors to segments, and to the files of a generation."""
