"""Building blocks of tests: logs, archives, stores, damage, faults and limits. No tests lie here."""
