"""The Delta tables of a store. Nothing else knows Delta."""
