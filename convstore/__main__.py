"""Runs the command line as ``python -m convstore``."""

from __future__ import annotations

from convstore.cli import main

if __name__ == "__main__":
    main()
