"""Targets: large models of libraries in the role of `specdecode.roles.Target`. One module per library, imported when it
is used."""
