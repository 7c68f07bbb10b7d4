"""Sending recordings, measuring what comes of it, and comparing what came out."""
