"""A clinical assistant behind an HTTP interface: FastAPI, LangGraph and convstore. `main.py` shows it at work."""
