"""Guest memory as a flat base file plus a packed delta: find dirty pages, write, apply and flatten deltas."""
