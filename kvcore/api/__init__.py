"""The answers of the command line over HTTP and for agents: extras `api` (Starlette) and `mcp`. See docs/api.md.

    request -> routes.py (limits of the client) -> pool.py -> worker.py, a process of its own -> operations.py -> answer

Nothing of a request is logged, and no request keeps the event loop, or a page in the same process, waiting: answers are
computed in other processes, each within a limit of CPU time that the kernel enforces.
"""
