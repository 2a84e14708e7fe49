"""The command ``convstore demo``: a small agent asked three questions about a corpus of its own."""
