"""Bytes between clients and the ports of sandboxes: HTTP both ways as a stream, and WebSocket."""
