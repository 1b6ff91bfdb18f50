"""Analyses of trained runs: each module computes its results and draws them for the report."""
