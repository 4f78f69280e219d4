"""Where iterations of a job end, from its optimizer steps or its operations."""
