"""From bytes in files to named tensors."""
