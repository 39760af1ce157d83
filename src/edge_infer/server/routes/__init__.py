"""HTTP endpoints, one file a family."""
