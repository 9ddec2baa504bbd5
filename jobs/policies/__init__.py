"""The job `policies`: settings by topic, as a cluster has them."""
