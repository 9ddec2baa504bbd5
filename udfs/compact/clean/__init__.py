"""The records to keep, the last one of each key, and the batches made of them."""
