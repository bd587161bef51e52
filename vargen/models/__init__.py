"""Image models, one folder a family; a family imports no pipeline.

Classes are imported from their own modules: this file stays empty of imports, so that reading a configuration does not
load diffusers.
"""
