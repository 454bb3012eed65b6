"""Measurements that users can repeat: `aenv bench AREA`. Each module is one area."""
