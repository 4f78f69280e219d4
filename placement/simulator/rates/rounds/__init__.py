"""Jobs that run in rounds, at the rates of a table of isolated throughputs and of ratios."""
