"""Model folders, files and downloads: what is known about a model before a weight is read."""

from headrace.hub.lookup import find_model

__all__ = ["find_model"]
