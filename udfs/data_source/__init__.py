"""Reading for the data sources: plans, pieces, Arrow record batches."""
