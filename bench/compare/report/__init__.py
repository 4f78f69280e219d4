"""The report of a comparison: text, pictures and an HTML page."""
