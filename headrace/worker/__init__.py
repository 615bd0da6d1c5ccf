"""Runs the model: input batch, model runner, sampler, executors."""
