"""From a request to records: resolve, assemble, train, and the interface of the engines that run jobs."""
