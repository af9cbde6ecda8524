"""The answers of the command line over HTTP and for agents: extras `api` (Starlette) and `mcp`. See docs/api.md.

    request -> routes.py (who asks, how much) -> pool.py -> worker.py, a process of its own -> operations.py -> answer

Nothing of a request is logged, and no request keeps the event loop, or a page that lives in the same process, waiting:
what is asked is worked out in other processes, each under a limit of time that the kernel enforces.
"""
