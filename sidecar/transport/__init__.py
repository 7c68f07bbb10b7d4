"""Sockets: the only rooms that speak ZMQ are in here."""
