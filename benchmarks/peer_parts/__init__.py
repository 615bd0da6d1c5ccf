"""The parts of peers.py: what is run, by whom, what it could cost at best, what is written."""
