"""Connections, bodies, and what stands between the network and the routes."""
