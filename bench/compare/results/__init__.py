"""The results of a comparison: runs, figures, documents and the journal."""
