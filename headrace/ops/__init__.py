"""The operations models are written against, and their homes (native, torch)."""
