"""Rewrites: groups of ops replaced by one composite symbol, before anything is dispatched.

A router that claims single ops, or a fuser that runs after autodiff, cannot bind a kernel that
spans several ops; a rewrite can. The composite symbol's subsymbols are the original ops, so that
fallback and gradient come free. Each class of match sites is a dimension of its own.
"""

from thunder_tune.compiler.rewrites.rewriting import REWRITES, composite_of, rewrite

__all__ = ["REWRITES", "composite_of", "rewrite"]
