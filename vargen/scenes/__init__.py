"""The project's own captioned world: scenes as data, their renderer, their captions.

Knows nothing of models. Import from the modules; nothing is re-exported, so that `vargen scenes` starts fast.
"""
