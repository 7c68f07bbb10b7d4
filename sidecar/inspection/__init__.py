"""Messages as people read them: what stands in a message, what the sidecar would do with it, and why."""
