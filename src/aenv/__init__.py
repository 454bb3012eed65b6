"""AgentENV: microVM sandboxes that start from snapshots, pause, resume and fork."""

__version__ = "0.1.0"
