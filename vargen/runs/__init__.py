"""Long work on disk: atomic files, batches, progress, processes, records, and what makes two runs the same run.

Knows nothing of models, methods or the world.
"""
