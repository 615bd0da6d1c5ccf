"""Tools and thoughts: what a request asks of them, and how answers with them are read."""
