"""What lies beside a log: indexes, producer snapshots, checkpoints."""
