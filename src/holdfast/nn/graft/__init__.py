"""Insert memories, experts and general memories into existing networks."""
