"""Client of `envd`, the agent inside every guest: health, identity, processes and files."""
