"""Bytes in, spans and edits out: the wire formats, with no socket, clock or event loop."""
