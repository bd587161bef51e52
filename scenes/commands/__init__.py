"""The subcommands of `vargen` that need the world, one module each, with `run(arguments) -> exit code`."""
