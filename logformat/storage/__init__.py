"""Files of archives and stores: local ones, and objects of S3, Azure Blob Storage and Google Cloud Storage."""
