"""Sockets and child processes."""
