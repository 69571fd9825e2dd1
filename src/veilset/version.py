"""The version of this package, which releases carry."""

__version__ = "0.1.0"
