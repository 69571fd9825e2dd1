"""`python -m veilset`."""

from veilset.cli.app import main

main()
