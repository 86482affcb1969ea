"""What every SQL backend needs once: engines, read-only guards, times, keyset pages, guarded updates."""
