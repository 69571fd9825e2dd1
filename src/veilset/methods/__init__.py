"""One file per method; `base` holds what they have in common. Methods never import each other."""
