"""The MoE decode kernels: normalisation, router, the four leaves, and the fused block that calls them."""
