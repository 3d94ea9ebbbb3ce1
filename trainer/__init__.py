"""foxhunt's trainer: market files in, a judged trading policy out (stages 1-5, top to bottom)."""

__version__ = "0.1.0"
