"""Fields of requests to jobs of the engine, and its outputs to fields of answers."""
