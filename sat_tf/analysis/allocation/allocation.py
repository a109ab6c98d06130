"""Bits where they pay: the policy with the least estimated loss within a budget, proven."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import tf_keras as keras
from pydantic import Field

from sat_tf.analysis.allocation.budget import read_budget
from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.analysis.allocation.costs import of_sensitivity, of_table
from sat_tf.analysis.allocation.knapsack import Solution, solve
from sat_tf.analysis.allocation.npu import milliseconds_of, read_npu
from sat_tf.analysis.allocation.problem import BitProblem, make_problem
from sat_tf.analysis.allocation.result import Allocation, Proof
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.analysis.sensitivity.sensitivity import refuse_all_but_float, sensitivity
from sat_tf.arguments import is_integer
from sat_tf.export.lowering.packing import NothingPackedError, packing_problem
from sat_tf.messages import ProblemsError, instead_of, shortened
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.validation import check

ALL_BITS = tuple(range(2, 9))
USUAL_IMAGES = 256
# The file may be shorter than the sum over layers by some tens of bytes, or longer by fewer. The
# limit on the sum is first raised by so many, so that nothing that fits is left out; if the file of
# the choice is too long, it is lowered.
_BYTES_ASIDE = (64, 0, -16, -64, -512)


_Enough = Annotated[int, Field(ge=2, description="2 or more; pass 64")]


def allocate(
    model: keras.Model,
    dataset: Any = None,
    policy: BitPolicy | int | None = None,
    *,
    budget: Mapping[str, Any],
    cost: Any = "sensitivity",
    npu: str | Mapping[str, Any] | None = None,
    weight_bits: Iterable[int] = ALL_BITS,
    activation_bits: Iterable[int] = ALL_BITS,
    pack: str = "auto",
    num_images: int = USUAL_IMAGES,
    progress: bool = True,
    **removed: Any,
) -> Allocation:
    """Chooses weight and activation bits for each layer: the least loss within a budget.

    minimize Σ cost of each layer's bits, so that the whole model keeps every limit, and tensors
    with one grid have one number of bits. This multiple-choice knapsack is solved exactly, by
    branch and bound; the result says how it is proven.

    What follows the policy's weight_bits and activation_bits is chosen. What the policy settles
    otherwise stays: first and last layers unless first_last_weight_bits=None, streams, images, and
    bits given by overrides. Nothing is trained, and the model is not changed.

    Args:
        model: a Functional or Sequential float model with one input and one output.
        dataset: images, with labels or without, as for `sat_tf.sensitivity`; None with a table of
            costs.
        policy: everything beside the bits that are chosen; see `BitPolicy`. Where it names no
            weights, they are DoReFa's at all bits, in what is proposed too.
        budget: limits, at least one, each a number or a share such as "60%" of what the most bits
            need: "bytes" of the file; "milliseconds" of one image on the `npu`;
            "average_weight_bits", "average_activation_bits", or "average_bits" for both.
        cost: "sensitivity", the measured loss with one layer quantized; what `sat_tf.sensitivity`
            has returned; or a table {layer: {(weight bits, activation bits): cost}}, whose keys may
            be weight bits alone.
        npu: an Ethos-U, such as "ethos-u55-128", or a mapping with the arguments of
            `sat_tf.export.targets.ethos_u.compile_file` that name it and its memories. Arm's
            compiler, of the extra `[ethos]`, then estimates the milliseconds of layers: a file is
            compiled for each of `weight_bits`. The policy gets its target.
        weight_bits: to choose from, 1 to 8.
        activation_bits: to choose from, 1 to 8.
        pack: how the file stores kernels, as for `export_tflite`: with "auto", those of dense
            layers and 1x1 convolutions have 4 bits where their codes fit, all others 8.
        num_images: how many images to take at most.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.
        **removed: arguments of earlier versions, which are refused.

    Returns:
        An `Allocation`: the `policy`, and a table of layers, totals and the proof.

    Raises:
        ImportError: there is an `npu`, and its compiler is not installed.
        TypeError: an argument that there is not; says what to use in place of removed ones.
        ValueError: an invalid argument; a budget that no choice keeps, with the smallest possible
            value of each limit; a `pack` that `export_tflite` would refuse, because it packs no
            kernel of the choice, or of any; a table with problems, all of which are listed; a model
            that cannot be quantized or has nothing to choose; data that do not fit, or give NaN.

    Example:
        found = sat_tf.allocate(model, (images, labels), budget={"bytes": 500_000})
        quantized = sat_tf.quantize_model(model, found.policy)
    """
    if removed:
        known = [name for name in allocate.__annotations__ if name not in ("removed", "return")]
        fixes = (
            f"{name} is not an argument{instead_of(f'allocate.{name}', known)}" for name in removed
        )
        raise TypeError(str(ProblemsError("allocate", fixes)))
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    limits = read_budget(budget, npu=npu is not None)
    if npu is not None:
        npu, policy = read_npu(npu, policy)
    weight_bits = _bits("weight_bits", weight_bits)
    activation_bits = _bits("activation_bits", activation_bits)
    _check_cost(cost, dataset)
    if problem_of_pack := packing_problem(pack):
        raise ValueError(f"pack: {problem_of_pack}")
    check("allocate", num_images=(num_images, _Enough))
    refuse_all_but_float(model)
    choices = ModelChoices(model, policy, weight_bits, activation_bits, pack=pack)
    milliseconds = None if npu is None else milliseconds_of(model, choices, weight_bits, npu)
    zeros = [[0.0] * len(layer.choices) for layer in choices.layers]
    problem = make_problem(choices, zeros, limits, milliseconds)
    # Before anything is measured, which takes long.
    if solve(problem.raised(_BYTES_ASIDE[0])) is None:
        raise problem.unreachable()
    is_measured = isinstance(cost, str)
    if is_measured:
        fewest = choices.policy_at(min(weight_bits), min(activation_bits))
        cost = sensitivity(model, dataset, fewest, num_images=num_images, progress=progress)
    is_table = isinstance(cost, Mapping)
    costs = (of_table if is_table else of_sensitivity)(cost, choices.layers)
    if is_measured and not any(map(any, costs)):
        raise ValueError(
            "cost='sensitivity': received images on which no number of bits changes anything, by "
            "which all bits would cost the same; give images as the model is used with."
        )
    problem = make_problem(choices, costs, limits, milliseconds)
    solution, policy, length = _solved(model, problem, pack)
    return Allocation(
        model=model.name,
        policy=policy,
        layers=tuple(problem.rows(solution.chosen)),
        totals=problem.totals(solution.chosen, length),
        proof=Proof(cost=solution.cost, bound=solution.bound),
        cost_kind="table" if is_table else "sensitivity",
        pack=pack,
    )


def _solved(
    model: keras.Model, problem: BitProblem, pack: str
) -> tuple[Solution, BitPolicy, int | None]:
    """Returns the solution, its policy, and the bytes of its file, which keep their limit.

    The bound is that of the first limit on the sum of bytes, which leaves out nothing that fits.
    """
    bound = -math.inf
    for aside in _BYTES_ASIDE:
        solution = solve(problem.raised(aside))
        if solution is None:
            raise problem.unreachable()
        bound = max(bound, solution.bound) if aside == _BYTES_ASIDE[0] else bound
        policy = problem.choices.policy_of(problem.chosen(solution.chosen))
        if problem.choices.sizes is None:
            return solution, policy, None
        try:
            length = file_bytes(model, policy, pack=pack)
        except NothingPackedError as error:
            raise ValueError(
                f"allocate, pack={pack!r}: received a budget that the choice of the least cost "
                "keeps with 8 bits in all kernels of the file, which export_tflite refuses with "
                "this packing, expected one that takes fewer; lower a limit, such as "
                "average_weight_bits, or use pack='auto'."
            ) from error
        if length <= problem.byte_limit:
            return dataclasses.replace(solution, bound=bound), policy, length
    raise RuntimeError(
        f"the file has {length:,} bytes, expected {problem.byte_limit:,.0f} at most: this is a "
        "defect of the sum over layers; lower the limit."
    )


def _bits(name: str, given: Any) -> tuple[int, ...]:
    """Returns the numbers of bits to choose from, ascending, each once."""
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not values or not all(is_integer(value, lowest=1, limit=9) for value in values):
        raise ValueError(
            f"{name}={given!r}: expected integers from 1 to 8 to choose from, such as (2, 4, 8)."
        )
    return tuple(sorted({int(value) for value in values}))


def _check_cost(cost: Any, dataset: Any) -> None:
    if isinstance(cost, str) and cost == "sensitivity" and dataset is None:
        raise ValueError(
            f"cost={cost!r}: received no dataset, expected images, on which it is measured; give "
            "some, or a table of costs."
        )
    if cost != "sensitivity" and not isinstance(cost, Sensitivity | Mapping):
        raise ValueError(
            f"cost={shortened(repr(cost))}: expected 'sensitivity', what sat_tf.sensitivity has "
            "returned, or a table {layer: {(weight bits, activation bits): cost}}."
        )
