"""Network architectures. Shapes come from an ImageSpec, weights from a passed generator."""
