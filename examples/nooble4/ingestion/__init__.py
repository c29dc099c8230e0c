"""The ingestion service: documents to vectors that can be searched."""
