"""From a request to records: resolve, order, assemble, train, select, test once; and the loop that works it off."""
