"""opennki: an open compiler and machine model for NKI kernels."""
