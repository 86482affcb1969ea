"""The least a Textual app can be."""

from __future__ import annotations

from textual.app import App

if __name__ == "__main__":
    App().run()
