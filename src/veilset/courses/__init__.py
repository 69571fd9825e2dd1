"""Continual learning: disjoint classes learned one task after the other, each at its own price (PSG, appendix C.5)."""
