"""`python -m opennki`: the command line."""

from .frontend.cli import main

main(prog_name="opennki")
