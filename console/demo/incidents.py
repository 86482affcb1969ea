"""The errors of the demo: those of one bad day, and texts that attack a terminal or a spreadsheet.

The payment provider throttles everybody, the mail provider's key has expired, and somebody renamed a column.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Error = Callable[[Random], str]


def rate_limited(chance: Random) -> str:
    return (
        "RATE_LIMITED: 429 Too Many Requests from api.payments.example: "
        f"retry after {chance.randrange(20, 90)}s (request req_{chance.getrandbits(40):010x})"
    )


def api_key_expired(chance: Random) -> str:
    return (
        "ERR_AUTH: 401 invalid API key for mail.example: key ending in 4f2c expired"
        f" (request {chance.getrandbits(48):012x})"
    )


def column_renamed(chance: Random) -> str:
    return (
        "UndefinedColumn: column invoices.customer_ref does not exist\n"
        f"LINE {chance.randrange(40, 44)}: ... invoices.customer_ref ... id = {chance.randrange(10_000, 99_999)}\n"
        "HINT: Perhaps you meant to reference the column invoices.customer_id."
    )


def timed_out(chance: Random) -> str:
    return (
        f"ERR_TIMEOUT: connection to 10.0.{chance.randrange(4)}.{chance.randrange(2, 250)}:5432"
        f" timed out after {chance.choice((5, 10, 30))}s"
    )


def declined(chance: Random) -> str:
    return f"CARD_DECLINED: card declined by issuer, order {chance.randrange(100_000, 999_999)}"


def card_expired(chance: Random) -> str:
    return f"CARD_EXPIRED: the card expired while the payment waited, order {chance.randrange(100_000, 999_999)}"


def out_of_memory(chance: Random) -> str:
    return f"ERR_HANDLER: worker killed by signal 9 while rendering report {chance.randrange(1_000, 9_999)}"


def not_json(chance: Random) -> str:
    return f"Invalid JSON in the model's answer: Expecting ',' delimiter: line 1 column {chance.randrange(90, 900)}"


def model_unavailable(chance: Random) -> str:
    return f"503 service temporarily unavailable: embeddings.example, retry in {chance.randrange(2, 30)}s"


def carrier_down(chance: Random) -> str:
    return f"CARRIER_UNAVAILABLE: label service returned 502 for parcel {chance.randrange(10**8, 10**9)}"


HOSTILE: tuple[str, ...] = (
    "\x1b[2J\x1b[31mALL CLEAR\x1b[0m nothing to see here",
    "\x1b]52;c;cm0gLXJmIH4=\x07 an error that writes to the clipboard",
    "\x1b]8;;https://evil.example\x07click me\x1b]8;;\x07",
    "\x9b31mC1 controls\x9b0m and a bell\x07",
    "invoice \u202e0001 EUR\u202c reversed",
    "zero\u200bwidth\u200d and \U000e0041 tags",
    "Z" + "\u0301\u0316\u0352" * 300 + "algo",
    "[@click=app.quit]retry[/] [/x] [link=https://evil.example]list[int][/link]",
    "=HYPERLINK(\"https://evil.example\",\"totals\")",
    'JSON: {"error": {"code": [1, 2, {"deep": null}]}, "text": "\\u001b[31m"}',
    "NUL \x00 in the middle\r\nand a second line\r\n\tindented",
    "длинное сообщение об ошибке, 数据库连接超时, ترتيب, emoji 🔥👩‍💻",
    "the start of something long: " + "lorem ipsum dolor sit amet, " * 12_000,
)
"""Error texts with control sequences, markup, formulas, invisible characters or great length."""
