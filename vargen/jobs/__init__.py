"""The Python behind every long command: generation, evaluation, benchmarks, tuning, conversion.

Jobs ask for prompts, references and a judge through protocols; arguments of commands are read in `vargen.commands`.
"""
