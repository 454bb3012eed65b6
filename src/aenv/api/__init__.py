"""The HTTP edge: authorise, parse, call one service, shape the answer. Knows nothing of virtual machines."""
