"""Model folders: finding, downloading, reading what they say about themselves."""
