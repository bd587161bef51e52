"""Long work on disk: atomic files, batches, progress, processes, records, and what makes two runs the same run.

Nothing here knows models, methods or a world.
"""
