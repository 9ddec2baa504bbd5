"""The Spark session, its tasks, and how it starts quickly."""
