"""Recipes: which regions exist and the cadence between them."""
