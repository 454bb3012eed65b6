"""Sandbox disks: a shared raw image under sealed qcow2 overlays and one writable overlay."""
