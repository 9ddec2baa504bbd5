"""What tests are made of: logs, archives, stores, damage, faults and limits. No tests lie here."""
