"""Kernels whose time on the card somebody has published, written anew from the published description: table.MEASURED.

What a description leaves open (order of loads, number of buffers, copying engine) is decided in the kernel, once, and said
there. Buffers rotate: steps that are independent on paper must not wait for one tile.
"""
