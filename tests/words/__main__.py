"""Prints every sentence the product can say, to be read in one go: `python -m tests.words [KIND…]`."""

from __future__ import annotations

import sys

from tests.words.sentences import everything, from_catalogue, from_command_line, from_source


def main(kinds: list[str]) -> None:
    sentences = everything() if kinds else [*from_source(), *from_catalogue(), *from_command_line()]
    chosen = [sentence for sentence in sentences if not kinds or sentence.kind in kinds]
    for kind in dict.fromkeys(sentence.kind for sentence in chosen):
        sys.stdout.write(f"\n== {kind}\n")
        for sentence in chosen:
            if sentence.kind == kind:
                sys.stdout.write(f"{sentence.where}\n    {sentence.text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
