"""The heart: which sandboxes exist, what state they are in, and how they change."""
