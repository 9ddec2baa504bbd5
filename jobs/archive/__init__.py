"""Log directories: their listing, Kafka's lock, comparison of places."""
