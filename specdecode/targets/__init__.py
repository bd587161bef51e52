"""Targets: models of other libraries in the role of `specdecode.roles.Target`, one module per library."""
