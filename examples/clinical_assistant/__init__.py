"""A clinical assistant behind an HTTP interface: FastAPI, LangGraph and convstore. Run `main.py` to see it."""
