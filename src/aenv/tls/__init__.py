"""Certificates: a local authority where there is no public one, and what the server shows clients."""
