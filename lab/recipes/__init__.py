"""Published tables, row by row, with the settings that make each number."""
