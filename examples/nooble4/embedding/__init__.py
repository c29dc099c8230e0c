"""The embedding service: texts to vectors."""
