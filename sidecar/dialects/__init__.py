"""The request dialects: each one reads, admits, materializes and refuses requests of its own encoding."""
