"""Pictures of simulations, comparisons, fits and circles."""
