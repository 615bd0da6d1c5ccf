"""The small real models of the tests: fetched, put together, converted, checked."""
