"""What the data sources read: plans, pieces, Arrow record batches."""
