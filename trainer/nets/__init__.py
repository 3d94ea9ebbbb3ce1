"""Stage 3: parameter arena, layers (forward and backward side by side), encoder, heads, losses."""
