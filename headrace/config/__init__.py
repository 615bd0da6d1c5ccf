"""Settings: EngineArgs (flat, as users give them) and EngineConfig (frozen, resolved)."""
