"""The project's own captioned world: renderer, captions, judge, recipes and weights of the shipped models.

`vargen` finds it through entry points and imports it nowhere. Nothing is re-exported, so that `vargen scenes` starts
fast.
"""
