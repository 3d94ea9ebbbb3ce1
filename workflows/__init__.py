"""Hera workflows, their command lines and the local runner. Knows the trainer by its command line only."""
