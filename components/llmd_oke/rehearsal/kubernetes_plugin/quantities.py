"""Kubernetes quantities, in the canonical form that a server answers."""

import re
from decimal import ROUND_UP, Decimal
from typing import Final

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_FORM: Final = re.compile(r"([+-]?[0-9.]+)(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]+))")


class NotAQuantity(ValueError):
    """A text that no quantity is written as."""


def canonical(text: str) -> str:
    """The text that a server answers for a quantity: `1000m` is `1`, `1024Mi` is `1Gi`, `0.5` is `500m`.

    Raises NotAQuantity. See the rules at k8s.io/apimachinery/pkg/api/resource.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise NotAQuantity(text)
    number, binary, decimal, exponent = match.groups()
    try:
        mantissa = Decimal(number)
    except ArithmeticError:
        raise NotAQuantity(text) from None
    if binary:
        value = mantissa * 1024 ** _BINARY[binary]
        return _decimal(value) if abs(value) < 1024 else _binary(value)
    if exponent:
        return _exponential(mantissa.scaleb(int(exponent)))
    return _decimal(mantissa.scaleb(_DECIMAL[decimal]))


def _binary(value: Decimal) -> str:
    whole = int(value.to_integral_value(ROUND_UP))
    power = 0
    while power < 6 and whole % 1024 == 0:
        whole //= 1024
        power += 1
    suffixes = {order: suffix for suffix, order in _BINARY.items()}
    return f"{whole}{suffixes.get(power, '')}"


def _decimal(value: Decimal) -> str:
    mantissa, power = _largest_power(value, 18)
    return f"{mantissa}{next(suffix for suffix, order in _DECIMAL.items() if order == power)}"


def _exponential(value: Decimal) -> str:
    mantissa, power = _largest_power(value, 18)
    return f"{mantissa}e{power}" if power else str(mantissa)


def _largest_power(value: Decimal, highest: int) -> tuple[int, int]:
    """The whole mantissa and the largest multiple of three as its power of ten; nothing is smaller than 10^-9."""
    mantissa, power = int(value.scaleb(9).to_integral_value(ROUND_UP)), -9
    if mantissa == 0:
        return 0, 0
    while power < highest and mantissa % 1000 == 0:
        mantissa //= 1000
        power += 3
    return mantissa, power
