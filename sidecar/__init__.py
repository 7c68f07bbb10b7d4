"""A ZMQ/msgpack ingest sidecar between a multimodal LLM frontend and an inference engine."""

__version__ = "0.1.0"
