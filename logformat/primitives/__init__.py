"""Bytes: checksums, varints, hashes, codecs, and columns of bytes."""
