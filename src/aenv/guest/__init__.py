"""Client of `envd`, the agent inside every guest: health, identity, processes and files."""

ENVD_PORT = 49983
"""Port of the guest agent, fixed by the E2B contract."""
