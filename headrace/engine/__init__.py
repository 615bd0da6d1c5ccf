"""The front half of the engine: clients, input and output processing, launch and watch."""
