"""What operators see of the process: metrics, logs, the admin HTTP server and its status page."""
