"""Long work on disk: atomic files, batches, progress, processes, records, and identities of runs.

Nothing here knows models, methods or a world.
"""
