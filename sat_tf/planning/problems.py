"""Problems by the layer that each of them names."""

from collections.abc import Iterable


def by_layer(problems: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """The problems of each layer, without its name; those of no layer are left out.

    >>> by_layer(["conv: received 3.", "conv/kernel:0: received 1.", "no layer."], ["conv"])
    {'conv': ['received 3.', 'kernel:0: received 1.']}
    """
    # The longest name first: names may hold slashes.
    known = sorted(names, key=len, reverse=True)
    found: dict[str, list[str]] = {}
    for problem in problems:
        for name in known:
            if problem.startswith((f"{name}: ", f"{name}/")):
                text = problem[len(name) + 1 :].strip()
                if text not in found.setdefault(name, []):
                    found[name].append(text)
                break
    return found
