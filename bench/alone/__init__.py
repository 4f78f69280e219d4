"""A job alone on a link under a congestion control and under its MLTCP control: iteration times, losses and marks."""
