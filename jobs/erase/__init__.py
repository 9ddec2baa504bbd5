"""Erasure: records of some keys leave a store, and do not come back."""
