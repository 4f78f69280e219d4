"""Programs that others have written or described; those of packages are run as they are, from there."""
