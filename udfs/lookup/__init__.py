"""Searches without a broker, and the minutes of the time index. See LOOKUP.md."""
