"""The one IR: dtypes, memories, access patterns, the instruction table, the module graph, its text and its verifier.

Nothing in here imports another folder of the project; everything else imports this one.
"""

from . import printer

__all__ = ["printer"]
