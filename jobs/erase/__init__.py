"""Erasure: removes the records of some keys from a store permanently."""
