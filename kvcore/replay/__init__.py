"""A trace of requests through vLLM's own scheduler and block pool, one engine step after another."""
