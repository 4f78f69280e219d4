"""The built-in DNN profiles, one JSON file per model."""
