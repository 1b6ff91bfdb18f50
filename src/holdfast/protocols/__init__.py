"""Who may be seen when: plans, selection, the loop, the run."""
