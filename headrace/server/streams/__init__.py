"""Requests under way in the engine, and their answers sent piece by piece."""
