"""Constraints on text as grammars: built and checked from what a caller asks, compiled, followed.

Knows token bytes but no tokenizer; never renders, schedules or samples.
"""
