"""What keeps one visitor from taking what belongs to others: in front of Streamlit, and around each run of a page.

layer.py      the ASGI layer: uploads, WebSockets, what is freed when a session ends
frames.py     a WebSocket's bytes, before they are a message
files.py      uploaded files: which were asked for, and the room that they take
turns.py      runs of pages, in turn by client
streamlit_hooks.py   the places of Streamlit where these take hold
notices.py    what a session is told on its page
"""
