"""Words advice for the console: it names keys and switches where the command line names options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from console.core.advice import Advice, Step
from console.core.backend import Attempts
from console.core.capabilities import SwitchSpec, offered_switches
from console.core.faults import Fault, sentences

Switches = Mapping[str, SwitchSpec]
_CORE_SWITCHES: Switches = offered_switches(())
RESET_ATTEMPTS = "reset attempts"


def switch_name(flag: str, switches: Switches) -> str:
    """The name of a switch; a readable one for a switch that no attached system offers."""
    return switches[flag].label if flag in switches else flag.replace("_", " ")


def advice_text(advice: Advice, switches: Switches = _CORE_SWITCHES) -> str:
    """What to do, as one sentence."""
    match advice.step:
        case Step.SET_ATTEMPTS:
            return f'Turn {"on" if advice.value == Attempts.RESET else "off"} "{RESET_ATTEMPTS}".'
        case Step.TURN_ON:
            return f'Turn on "{switch_name(advice.value, switches)}".'
        case Step.CHOOSE_KIND:
            names = (f'"{switch_name(kind, switches)}"' for kind in advice.value.split())
            return f"Turn on {' or '.join(names)}."
        case Step.CONFIRM:
            return f"Type {advice.value} to confirm."
        case Step.APPLY_PLAN:
            return "Type the number that the plan shows."
        case Step.SELECT_ALL:
            return "Press A in Failures to mark all that match."
        case Step.SELECT_FEWER:
            return "Or mark fewer."
        case Step.ALLOW_WRITES:
            return "Start the console without read-only mode."
        case Step.VERIFY_TRAIL:
            return "Press v in the Trail to verify it."
        case Step.RESUME:
            return f"Then resume {advice.value} in the Trail: that finds out what was written, and continues."
        case Step.SUBMIT:
            return "Press ctrl+s in the plan to submit it, for somebody else to approve."
        case Step.COPY_KEY:
            return "Press y in Failures to copy one."
        case _:
            assert_never(advice.step)


def fault_text(error: Exception) -> str:
    """An error with what can be done about it, in one line."""
    if not isinstance(error, Fault):
        return f"internal error ({type(error).__name__})"
    return str(error) if error.advice is None else sentences(str(error), advice_text(error.advice))


def with_advice(text: str, advice: Mapping[str, Advice], switches: Switches) -> str:
    """A reason or warning of a plan with what can be done about it."""
    return f"{text} {advice_text(advice[text], switches)}" if text in advice else text
