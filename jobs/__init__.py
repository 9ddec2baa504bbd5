"""The jobs: command line, Spark sessions, Delta tables."""
