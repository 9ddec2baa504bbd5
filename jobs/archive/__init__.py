"""Log directories: their listing, Kafka's lock, places that are one folder."""
