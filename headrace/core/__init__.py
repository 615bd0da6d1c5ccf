"""The engine core: scheduler, KV blocks, the step loop. Token ids only."""
