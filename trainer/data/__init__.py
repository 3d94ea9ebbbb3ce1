"""Stage 1: market files -> canonical book frames -> features -> feature cache -> folds."""
