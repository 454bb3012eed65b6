"""Templates: names that point to captures."""
