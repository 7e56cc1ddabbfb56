"""Triton kernels, one module each; imported where one is launched, as Triton is large."""
