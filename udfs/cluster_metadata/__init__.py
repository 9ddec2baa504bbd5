"""A cluster's own metadata, from KRaft's log and snapshots: its topics, brokers and their settings."""
