"""From a request to results: the order of work, and the loop that works it off."""
