"""The shapes of HTTP requests and responses."""
