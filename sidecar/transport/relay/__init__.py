"""The relay's sockets: to the gateway the sidecar is the engine, to the engine it is the gateway."""
