"""Work shared by several methods."""
