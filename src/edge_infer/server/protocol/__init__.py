"""Request and response models, one file a family of endpoints."""
