"""The commands; none of them imports Textual."""
