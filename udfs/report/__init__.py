"""What is in a partition, and what cleaning would make of it."""
