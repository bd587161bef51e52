"""The project's own captioned world and everything that knows it: a guest that nothing below imports.

Import from the modules; nothing is re-exported, so that `vargen scenes` starts fast.
"""
