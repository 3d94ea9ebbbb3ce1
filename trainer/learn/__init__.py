"""Stage 4: replay, optimizer, controllers, state, regions, loop, checkpoint, metrics."""
