"""Stage 2: backtest environments: book fills, costs, positions, rewards."""
