"""Published alternatives to a congestion control that knows jobs: paths, priorities and moves, each one file."""
