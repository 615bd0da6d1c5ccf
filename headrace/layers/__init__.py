"""The parts models are made of: each holds its weights and describes its computation with ops."""
