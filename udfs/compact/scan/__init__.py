"""Segments' headers and checksums, and the facts that follow from them: log end, cleanable range, transactions,
gaps.
"""
