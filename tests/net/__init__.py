"""Tests of the network slots, with real namespaces."""
