"""From a request to records: resolve, assemble, train, and the engines that run jobs."""
