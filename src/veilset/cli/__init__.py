"""`veilset` on the command line."""
