"""Searches without a broker, the minutes of the time index, sizing. See LOOKUP.md."""
