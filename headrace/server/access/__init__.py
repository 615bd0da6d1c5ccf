"""Who sends requests, what they may do, and what of theirs is under way."""
