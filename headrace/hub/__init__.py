"""Model folders, files and downloads: what is known about a model before a weight is read."""
