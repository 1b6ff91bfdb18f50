"""Engines, which run jobs: on this machine or on a cluster, so that the failure of one run affects no other."""
