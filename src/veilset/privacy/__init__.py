"""The trusted kernel: the only door from private images to anything that may be shared.

Read in this order: events, bounds, noise, sampling, release, ledger, accounting, claim.
The kernel guarantees bound, noise and charge. What it cannot see, that a row depends only on its own record and the
public transcript, is a named assumption of every Claim.
"""
