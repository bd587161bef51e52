"""The subcommands of `vargen`, one module each, with `run(arguments) -> exit code`.

A module may import what is slow only after it has read its arguments.
"""
