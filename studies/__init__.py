"""Scripts that turn the records in results/ into the tables and figures of docs/studies; not installed."""
