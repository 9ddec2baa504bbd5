"""The Delta tables of a store. No other package knows Delta."""
