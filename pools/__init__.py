"""What memory there is and who holds it: specs, ledgers, the six pools, the prefix cache, one transaction over all.

This folder imports numpy and nothing else; it does not know requests, models or devices.
"""
