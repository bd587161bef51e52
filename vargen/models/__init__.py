"""Models, one folder a family, and code of several families.

Classes are imported from their own modules: this file stays empty of imports, so that reading a configuration does not
load diffusers.
"""
