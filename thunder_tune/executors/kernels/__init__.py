"""Kernels: Triton's, imported where one is launched, as Triton is large, and cuBLASLt's."""
