"""Measurements: latency, throughput, load on a server, and start-up, on one machine's limits."""
