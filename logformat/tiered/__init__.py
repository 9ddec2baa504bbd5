"""Tiered storage as a plain log directory: names of objects, which copies of a segment count, Aiven's manifests."""
