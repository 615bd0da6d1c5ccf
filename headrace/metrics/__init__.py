"""Counters and timings: what is measured, and how it is shown."""
