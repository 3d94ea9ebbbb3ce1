"""Stage 5: evaluation, statistics, fold result, gate, report."""
