"""Advice in the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from console.core.advice import Advice, Step
from console.core.capabilities import DISCARD_AS
from console.core.faults import Fault, sentences


def advice_text(advice: Advice) -> str:
    """What to do, as one sentence."""
    match advice.step:
        case Step.SET_ATTEMPTS:
            return f"Use --attempts {advice.value}."
        case Step.TURN_ON:
            return f"Use --{advice.value.replace('_', '-')}."
        case Step.CHOOSE_KIND:
            kinds = (kind.removeprefix(DISCARD_AS) for kind in advice.value.split())
            return f"Use {' or '.join(f'--as {kind}' for kind in kinds)}."
        case Step.CONFIRM:
            return f"Confirm with --confirm {advice.value}."
        case Step.APPLY_PLAN:
            return f"Apply this plan with `retriage apply {advice.value}`."
        case Step.SELECT_ALL:
            return "Add --all if you mean everything that needs attention."
        case Step.SELECT_FEWER:
            return f"Or add --limit {advice.value}."
        case Step.ALLOW_WRITES:
            return "Run it without --read-only to change anything."
        case Step.VERIFY_TRAIL:
            return "Run `retriage trail verify`."
        case Step.RESUME:
            return f"Then run `retriage overrides resume {advice.value}`: it finds out what was written, and continues."
        case Step.SUBMIT:
            return "Add --submit: then it waits for them, and `retriage proposals` lists it."
        case Step.COPY_KEY:
            return "Copy one from `retriage list`."
        case _:
            assert_never(advice.step)


def fault_text(fault: Fault) -> str:
    """A fault with what can be done about it."""
    return str(fault) if fault.advice is None else sentences(str(fault), advice_text(fault.advice))


def with_advice(text: str, advice: Mapping[str, Advice]) -> str:
    """A reason or warning of a plan with what can be done about it."""
    return f"{text} {advice_text(advice[text])}" if text in advice else text
