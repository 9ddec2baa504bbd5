"""Files beside a log: indexes, producer snapshots, checkpoints."""
