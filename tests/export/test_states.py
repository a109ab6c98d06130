"""States of streaming models: they leave a file and enter it again as the same codes."""

import dataclasses
import json
import re

import keras as keras3  # noqa: TID251 -- models of both Kerases have states
import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import sat_tf
from sat_tf.exact.certificate.certificate import certificate_page, read_certificate
from sat_tf.exact.certificate.proof import recheck
from sat_tf.exact.certificate.record import TensorCount
from sat_tf.exact.device.kit import read_device_check
from sat_tf.exact.tflite.contents import SETTINGS_NAME, read_contents
from sat_tf.export import read_graph, verify_file, write_kit
from sat_tf.export.export import file_content, file_graph
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.graph.network import Network
from sat_tf.keras3.twin import twin_of
from sat_tf.qat.states import tied_states
from tests.exact.device.kits import certificate_in, checked_here, reseal, unpacked
from tests.export.proofs import calibrated, deployed, proved

BOTH = pytest.mark.parametrize("library", [keras, keras3], ids=["keras2", "keras3"])
STATES = {"first_out": "first", "second_out": "second"}
POLICY = sat_tf.BitPolicy.mobile(8, input_type="int8", states=STATES)
DRAW = np.random.default_rng(0)
FRAMES = DRAW.normal(0.3, 1.0, (64, 1, 8)).astype(np.float32)


def keyword_net(library=keras, *, frames=1):
    """Two causal convolutions over buffers of past frames, and scores of each frame."""
    L = library.layers
    frame = L.Input((frames, 8), name="frame")
    first, second = L.Input((2, 8), name="first"), L.Input((4, 6), name="second")
    window = L.Concatenate(axis=1, name="window")([first, frame])
    features = L.Conv1D(6, 3, activation="relu", name="conv")(window)
    memory = L.Concatenate(axis=1, name="memory")([second, features])
    wider = L.Conv1D(6, 3, dilation_rate=2, activation="relu", name="dilated")(memory)
    scores = L.Conv1D(3, 1, name="scores")(wider)
    kept = [
        L.Cropping1D((frames, 0), name=name)(buffer)
        for name, buffer in (("first_out", window), ("second_out", memory))
    ]
    return library.Model([frame, first, second], [scores, *kept])


def rows():
    """Frames and buffers like those that a stream has."""
    first = DRAW.normal(0.3, 1.0, (64, 2, 8)).astype(np.float32)
    return [FRAMES, first, np.abs(DRAW.normal(0.0, 0.7, (64, 4, 6))).astype(np.float32)]


def tied(library=keras):
    library.utils.set_random_seed(0)
    quantized = sat_tf.quantize_model(keyword_net(library), POLICY)
    return sat_tf.calibrate(quantized, rows(), progress=False)


@pytest.fixture(scope="module")
def streaming():
    """A quantized streaming model, which nobody changes."""
    return tied()


def interpreter_of(path, kernels="AUTO"):
    resolver = getattr(OpResolverType, kernels)
    interpreter = Interpreter(str(path), experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    return interpreter


def ends_of(path):
    """Type, scale and zero point of the inputs and the outputs of a file, by name."""
    interpreter = interpreter_of(path)
    ends = interpreter.get_input_details() + interpreter.get_output_details()
    return {end["name"]: (end["dtype"], *end["quantization"]) for end in ends}


def zero(details):
    return np.full(details["shape"], details["quantization"][1], details["dtype"])


def run(interpreter, fed):
    """What a file makes of inputs by name; others are 0."""
    for details in interpreter.get_input_details():
        array = fed.get(details["name"])
        interpreter.set_tensor(details["index"], zero(details) if array is None else array)
    interpreter.invoke()
    outputs = interpreter.get_output_details()
    return {end["name"]: np.array(interpreter.get_tensor(end["index"])) for end in outputs}


def run_by_hand(path, codes, kernels="AUTO"):
    """The outputs of all frames, with the codes of states fed back as they are."""
    interpreter, states, made = interpreter_of(path, kernels), {}, []
    for frame in codes:
        made.append(run(interpreter, {"frame": frame[np.newaxis], **states}))
        states = {name: made[-1][output] for output, name in STATES.items()}
    return made


@BOTH
def test_both_ends_of_a_state_are_int8_codes_of_one_grid(library, path):
    report = sat_tf.export_tflite(tied(library), path)
    ends = ends_of(path)
    for output, name in STATES.items():
        assert ends[output] == ends[name]
        assert ends[output][0] == np.int8
    assert ends["second"][2] == -128  # no code is spent on values below 0
    assert ends["scores"] == (np.float32, 0.0, 0)
    assert report.states == STATES
    assert "first_out to first, second_out to second" in str([*report.statements])


@pytest.mark.parametrize("output_type", ["int8", "uint8"])
def test_other_outputs_have_the_type_that_is_asked_for(streaming, output_type, path):
    sat_tf.export_tflite(streaming, path, output_type=output_type)
    ends = ends_of(path)
    assert ends["scores"][0] == np.dtype(output_type)
    assert [ends[output] == ends[name] for output, name in STATES.items()] == [True, True]


@BOTH
@pytest.mark.parametrize("kernels", ["AUTO", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def test_frame_by_frame_a_file_gives_the_codes_of_the_whole_window(library, kernels, tmp_path):
    # The same network takes a window of 24 frames behind states of 0; all variables, those of
    # quantizers included, are those of the streaming model.
    model, whole = tied(library), sat_tf.quantize_model(keyword_net(library, frames=24), POLICY)
    whole.set_weights(model.get_weights())
    frame_path, whole_path = tmp_path / "frame.tflite", tmp_path / "whole.tflite"
    for each, path in ((model, frame_path), (whole, whole_path)):
        sat_tf.export_tflite(each, path, output_type="int8")
    grids = [
        (codes.scale, codes.zero_point)
        for path in (frame_path, whole_path)
        for codes in [read_graph(path.read_bytes(), "file").images[0].codes]
    ]
    assert grids[0] == grids[1]
    codes = np.clip(np.rint(FRAMES[:24] / grids[0][0]) + grids[0][1], -128, 127).astype(np.int8)
    made = run_by_hand(frame_path, codes, kernels)
    window = run(interpreter_of(whole_path, kernels), {"frame": codes.reshape(1, 24, 8)})
    scores = np.concatenate([outputs["scores"] for outputs in made], axis=1)
    np.testing.assert_array_equal(scores, window["scores"])
    assert len(np.unique(scores)) > 30
    for output in STATES:
        np.testing.assert_array_equal(made[-1][output], window[output])


@BOTH
def test_training_changes_nothing_of_the_tie(library, path):
    model = tied(library)
    sat_tf.export_tflite(model, path)
    before = ends_of(path)
    draw = np.random.default_rng(1)
    model.compile(library.optimizers.Adam(0.01), "mse")
    inputs = [4.0 * array for array in rows()]  # far beyond the ranges of calibration
    targets = [draw.normal(0, 3, (64, *tensor.shape[1:])) for tensor in model.outputs]
    weights = model.get_layer("quant_conv").get_weights()
    model.fit(inputs, targets, epochs=3, verbose=0)
    assert not all(map(np.array_equal, weights, model.get_layer("quant_conv").get_weights()))
    sat_tf.export_tflite(model, path, snap_biases=True)
    after = ends_of(path)
    assert {name: after[name] for name in (*STATES, *STATES.values())} == {
        name: before[name] for name in (*STATES, *STATES.values())
    }
    certificate = sat_tf.verify_tflite(model, path, FRAMES, progress=False)
    assert certificate.codes_differing == certificate.sequence.runtimes["xnnpack"].codes_differing
    assert certificate.codes_differing == 0


def test_a_certificate_counts_the_codes_of_a_sequence_from_the_zero_state(path, tmp_path):
    json_path = tmp_path / "certificate.json"
    options = {"certificate_path": json_path}
    _, certificate = proved(tied(), path, FRAMES, {"snap_biases": True}, **options)
    run = certificate.sequence
    assert (run.states, run.frames) == (STATES, 64)
    values = 64 * (3 + 2 * 8 + 4 * 6)
    for count in (*run.runtimes.values(), run.keras):
        assert (count.codes_compared, count.frames) == (values, 64)
    # Builtin kernels round twice, which is counted.
    assert run.runtimes["xnnpack"].codes_differing == run.keras.codes_differing == 0
    # Rows are compared tensor by tensor with the states that the sequence reaches.
    assert certificate.codes_compared > 64 * 60
    sentence = (
        "Run frame by frame from states of real 0, first_out fed back to first and second_out fed "
        "back to second as codes, the file gives the codes of the whole sequence: 0 of "
    )
    (note,) = [note for note in certificate.statements if note.words.startswith(sentence)]
    assert note.kind == "good"
    assert " ".join(certificate_page(certificate).split()).count(sentence) == 1
    written = json.loads(json_path.read_text())
    assert written["states_notes"][0]["words"] == note.words
    assert read_certificate(json_path).sequence == run


def test_the_sequence_is_that_of_an_app(streaming, path):
    # The states that a certificate's rows have are those of a loop over LiteRT.
    sat_tf.export_tflite(streaming, path)
    graph = read_graph(path.read_bytes(), "file")
    assert graph.states == STATES
    codes = graph.images[0].taken(FRAMES[:8])
    by_hand = sum(output["scores"].sum() for output in run_by_hand(path, codes))
    certificate = verify_file(path, FRAMES[:8], progress=False)
    assert certificate.sequence.runtimes["xnnpack"].codes_differing == 0
    assert certificate.sequence.keras is None
    (last,) = [tensor for tensor in certificate.codes if tensor.name == "scores_codes"]
    places = np.arange(len(last.counts)) + last.lowest - last.zero_point
    assert by_hand == pytest.approx(last.step * np.sum(places * last.counts), rel=1e-5)


def test_frames_alone_or_with_states_in_a_list_or_a_dictionary_are_a_sequence(streaming, path):
    sat_tf.export_tflite(streaming, path)
    frames, first, second = (array[:5] for array in rows())
    forms = [
        *(frames, [frames], {"frame": frames}),
        *([frames, first, second], {"frame": frames, "first": first, "second": second}),
    ]
    found = [sat_tf.verify_tflite(streaming, path, form, progress=False) for form in forms]
    assert {one.images_sha256 for one in found[:3]} == {found[0].images_sha256}
    assert {one.images_sha256 for one in found[3:]} == {found[3].images_sha256}
    assert found[0].images_sha256 != found[3].images_sha256
    assert len({str(one.sequence) for one in found}) == 1
    with pytest.raises(ValueError, match="received 2 arrays for 3 inputs"):
        sat_tf.verify_tflite(streaming, path, [frames, first], progress=False)


def test_a_certificate_whose_sequence_differs_is_red(streaming, path):
    sat_tf.export_tflite(streaming, path)
    certificate = sat_tf.verify_tflite(streaming, path, FRAMES, progress=False)
    assert certificate.is_exact
    count = certificate.sequence.runtimes["xnnpack"]
    differing = dataclasses.replace(count, outputs=[TensorCount("scores", (1, 3), 192, 1)])
    runtimes = {**certificate.sequence.runtimes, "xnnpack": differing}
    run = dataclasses.replace(certificate.sequence, runtimes=runtimes)
    bad = dataclasses.replace(certificate, sequence=run)
    assert not bad.is_exact
    assert "but frame by frame it parts from the simulation" in bad.verdict.words


def test_a_file_says_which_outputs_are_states(streaming, path):
    sat_tf.export_tflite(streaming, path)
    settings = read_contents(path.read_bytes(), "file").settings
    assert settings["states"] == STATES
    sat_tf.export_tflite(streaming, path, states={})  # none, although the model has some
    assert "states" not in read_contents(path.read_bytes(), "file").settings
    assert ends_of(path)["first_out"][0] == np.float32
    certificate = sat_tf.verify_tflite(streaming, path, rows(), progress=False)
    assert certificate.sequence is None
    assert "sequence" not in certificate.to_dict()


@pytest.mark.parametrize(
    "states",
    [{"first_out": "second"}, {"scores": "first"}, {"no": "first"}, {"first_out": "no"}, ["first"]],
)
def test_a_file_whose_states_are_none_is_not_ours(streaming, states, path):
    settings = FileSettings(states=STATES)
    graph = file_graph(Network(streaming), settings)
    content = file_content(graph, settings)
    assert read_graph(content, "file").states == STATES
    forged = file_content(graph, _Forged(states=states))
    assert SETTINGS_NAME.encode() in forged
    with pytest.raises(ValueError, match="its states are no outputs and inputs of one grid"):
        read_graph(forged, "file")


class _Forged(FileSettings):
    """Settings that nothing has checked."""

    def __post_init__(self):
        pass


def test_a_certificate_is_checked_again_on_the_same_frames(streaming, path):
    sat_tf.export_tflite(streaming, path)
    recorded = verify_file(path, FRAMES[:8], progress=False)
    again = recheck(path, recorded, FRAMES[:8], progress=False)
    assert again.differences == []
    assert again.certificate.sequence == recorded.sequence
    with pytest.raises(ValueError, match="received 8 images with the hash"):
        recheck(path, recorded, FRAMES[8:16], progress=False)


def test_a_model_that_saw_no_data_is_not_exported(path):
    with pytest.raises(ValueError, match=r"first: .* call sat_tf.calibrate\(model, arrays\) first"):
        sat_tf.export_tflite(sat_tf.quantize_model(keyword_net(), POLICY), path)


def test_a_kit_compares_each_frame_from_the_states_in_front_of_it(streaming, path, tmp_path):
    sat_tf.export_tflite(streaming, path)
    expected = verify_file(path, FRAMES[:12], runtimes=(), progress=False)
    kit = write_kit(path, FRAMES[:12], tmp_path / "kit.zip", codes=True)
    folder = unpacked(kit.path, tmp_path / "kit")
    done = checked_here(folder, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found, is_simulated = read_device_check(path, certificate_in(tmp_path), FRAMES[:12])
    assert is_simulated
    assert found.is_exact
    assert (found.num_images, found.codes_compared) == (12, expected.codes_compared)
    # States of other frames are not those in front of each.
    states = np.load(folder / "images_1.npy")
    np.save(folder / "images_1.npy", np.roll(states, 1, axis=0))
    reseal(folder)
    done = checked_here(folder, tmp_path)
    assert done.returncode == 1
    assert "DIFFERS" in done.stdout


def test_a_kit_of_several_inputs_without_states_is_refused(streaming, path, tmp_path):
    sat_tf.export_tflite(streaming, path, states={})
    with pytest.raises(ValueError, match="received a model with 3 inputs and 3 outputs"):
        write_kit(path, FRAMES, tmp_path / "kit.zip")


@BOTH
def test_states_stay_in_saved_models_and_under_another_policy(library, path, tmp_path):
    model, saved = tied(library), tmp_path / "model.keras"
    model.save(saved)
    loaded = library.models.load_model(saved)
    again = sat_tf.requantize(loaded, sat_tf.BitPolicy.mobile(4))
    for each in (loaded, again):
        network = Network(each if library is keras else twin_of(each))
        assert tied_states(network) == STATES
        assert sat_tf.export_tflite(each, path).states == STATES
    free = sat_tf.requantize(loaded, sat_tf.BitPolicy.mobile(8, states={}))
    assert sat_tf.export_tflite(free, path).states == {}


# -- other forms of states -------------------------------------------------------------------------


def gated_cell():
    L = keras.layers
    frame, state = L.Input((8,), name="frame"), L.Input((6,), name="state")
    both = L.Concatenate()([frame, state])
    gate, other = (L.Dense(6, activation="sigmoid")(both) for _ in range(2))
    candidate = L.Dense(6, activation="tanh")(both)
    kept, new = L.Multiply()([gate, state]), L.Multiply()([other, candidate])
    state_out = L.Add(name="state_out")([kept, new])
    return [frame, state], [L.Dense(3, name="scores")(state_out), state_out]


def plain_cell():
    L = keras.layers
    frame, state = L.Input((8,), name="frame"), L.Input((6,), name="state")
    hidden = L.Dense(6)(L.Concatenate()([frame, state]))
    return [frame, state], [L.Activation("tanh", name="state_out")(hidden)]


def decaying():
    L = keras.layers
    frame, state = L.Input((8,), name="frame"), L.Input((8,), name="state")
    state_out = L.Multiply(name="state_out")([L.Dense(8, activation="sigmoid")(frame), state])
    return [frame, state], [L.Dense(3, name="scores")(state_out), state_out]


def rectified():
    L = keras.layers
    frame, state = L.Input((6, 6, 3), name="frame"), L.Input((6, 6, 4), name="state")
    conv = L.Conv2D(4, 3, padding="same")(L.Concatenate()([frame, state]))
    state_out = L.ReLU(6.0, name="state_out")(L.BatchNormalization()(conv))
    return [frame, state], [L.Dense(3)(L.GlobalAveragePooling2D()(state_out)), state_out]


CELLS = [gated_cell, plain_cell, decaying, rectified]


def calibrated_cell(ends, policy=None, states=None):
    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(3)
    inputs, outputs = ends
    data = [draw.normal(0.2, 1.0, (64, *end.shape[1:])).astype(np.float32) for end in inputs]
    states = states or {"state_out": "state"}
    policy = policy or sat_tf.BitPolicy.mobile(8, input_type="int8", states=states)
    return calibrated(keras.Model(inputs, outputs), policy, data), data


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("cell", CELLS)
def test_a_state_that_a_layer_makes_has_the_grid_of_the_input(cell, path):
    model, (frames, _) = calibrated_cell(cell())
    report, certificate = proved(model, path, frames, {"snap_biases": True})
    ends = ends_of(path)
    assert ends["state_out"] == ends["state"]
    assert not report.warnings
    assert certificate.sequence.runtimes["xnnpack"].codes_differing == 0
    assert certificate.sequence.keras.codes_differing == 0
    assert certificate.trained_differing == 0.0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_line_of_delays_has_one_grid(path):
    L = keras.layers
    frame, first, second = (L.Input((8,), name=name) for name in ("frame", "first", "second"))
    scores = L.Dense(3)(L.Concatenate()([frame, first, second]))
    ends = {"first_out": frame, "second_out": first}
    kept = [L.Reshape((8,), name=name)(end) for name, end in ends.items()]
    model, (frames, *_) = calibrated_cell(([frame, first, second], [scores, *kept]), states=STATES)
    _, certificate = proved(model, path, frames)
    ends = ends_of(path)
    assert len({ends[name] for name in ("frame", "first", "second", *STATES)}) == 1
    assert certificate.sequence.runtimes["xnnpack"].codes_differing == 0


def test_what_moves_for_portability_does_not_move_a_state(path):
    # The scale of a product is moved where x86 and Arm would round an input apart, but not this.
    model, _ = calibrated_cell(decaying())
    graph = deployed(model)
    (leaving, entering), *_ = graph.state_ends.values()
    assert leaving.name not in graph.moved_scales
    assert leaving.codes is None  # dequantized, until the file's type is known
    assert entering.codes.scale == graph.codes("state_out").scale


# -- refusals, beside those of tests/messages/states.txt -------------------------------------------

MISFITS = {
    "Did you mean first_out?": {"first_ou": "first"},
    "Did you mean first?": {"first_out": "firs"},
    "received an output of shape (2, 8) for an input of shape (4, 6)": {"first_out": "second"},
}


@BOTH
@pytest.mark.parametrize(("message", "states"), MISFITS.items())
def test_states_that_do_not_fit_are_refused_by_name(library, message, states, path):
    with pytest.raises(ValueError, match=re.escape(message)):
        sat_tf.quantize_model(keyword_net(library), sat_tf.BitPolicy.mobile(8, states=states))
    with pytest.raises(ValueError, match=re.escape(message)):
        sat_tf.export_tflite(tied(library), path, states=states)
    assert not path.exists()


def test_an_input_is_fed_by_one_output(streaming, path):
    twice = {"first_out": "first", "second_out": "first"}
    with pytest.raises(ValueError, match="received first_out and second_out for first"):
        sat_tf.BitPolicy(states=twice)
    with pytest.raises(ValueError, match="received 2 outputs for one input"):
        sat_tf.export_tflite(streaming, path, states=twice)


def test_a_tensor_that_is_shown_as_well_is_no_state_of_a_file(path):
    model = keyword_net()
    outputs = [*model.outputs, keras.layers.Activation("linear", name="shown")(model.outputs[1])]
    model = keras.Model(model.inputs, outputs)
    policy = sat_tf.BitPolicy.mobile(8, input_type="int8")
    with pytest.raises(ValueError, match="which is another output as well"):
        sat_tf.export_tflite(calibrated(model, policy, rows()), path, states=STATES)


def test_a_model_whose_inputs_are_all_states_has_no_frames():
    state = keras.layers.Input((4,), name="state")
    model = keras.Model(state, keras.layers.Dense(4, name="state_out")(state))
    policy = sat_tf.BitPolicy.mobile(8, states={"state_out": "state"})
    with pytest.raises(ValueError, match="a state for each input, expected another input"):
        sat_tf.quantize_model(model, policy)


@pytest.mark.thorough
@BOTH
def test_the_state_of_a_gru_of_one_step_is_fed_back(library, path):
    L = library.layers
    library.utils.set_random_seed(0)
    frame, state = L.Input((1, 3), name="frame"), L.Input((4,), name="state")
    new = L.GRU(4, name="state_out")(frame, initial_state=state)
    model = library.Model([frame, state], [L.Dense(2, name="scores")(new), new])
    policy = sat_tf.BitPolicy.mobile(8, input_type="int8", states={"state_out": "state"})
    frames = DRAW.normal(size=(64, 1, 3)).astype(np.float32)
    quantized = calibrated(model, policy, [frames, DRAW.uniform(-1, 1, (64, 4)).astype("float32")])
    _, certificate = proved(quantized, path, frames)
    assert certificate.sequence.codes_differing == 0


def test_integers_are_no_states():
    L = keras.layers
    frame, ids = L.Input((8,), name="frame"), L.Input((4,), dtype="int32", name="ids")
    embedded = L.Flatten()(L.Embedding(5, 3)(ids))
    scores = L.Dense(3)(L.Concatenate()([frame, embedded]))
    outputs = [scores, L.Dense(4, name="state_out")(frame)]
    policy = sat_tf.BitPolicy.mobile(8, states={"state_out": "ids"}, unsupported="float")
    with pytest.raises(ValueError, match="an output of float32 for an input of int32"):
        sat_tf.quantize_model(keras.Model([frame, ids], outputs), policy)


def test_a_picture_is_no_state():
    L = keras.layers
    frame, state = L.Input((3,), name="frame"), L.Input((3,), name="state")
    scores = L.Dense(3)(L.Concatenate()([frame, state]))
    policy = sat_tf.BitPolicy.mobile(8, states={"state_out": "state"})
    model = keras.Model([frame, state], [scores, L.Reshape((3,), name="state_out")(frame)])
    with pytest.raises(ValueError, match="codes of its own: no softmax, layer left float, picture"):
        sat_tf.quantize_model(model, policy)


def test_an_input_type_that_holds_no_codes_is_refused_for_a_state_alone():
    policy = sat_tf.BitPolicy(states=STATES, input_type="float32", input_range=(0, 1))
    assert [policy.type_of(name) for name in ("frame", "first")] == ["float32", "int8"]
    assert policy.states_range_of("frame")
    assert not policy.states_range_of("first")
    wrong = sat_tf.BitPolicy(states=STATES, input_type={"frame": "int8", "first": "uint8"})
    with pytest.raises(ValueError, match="received 'uint8' for 'first', expected 'int8'"):
        sat_tf.quantize_model(keyword_net(), wrong)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_float_head_or_a_softmax_on_a_state_is_refused(path):
    L = keras.layers
    frame, state = L.Input((8,), name="frame"), L.Input((4,), name="state")
    state_out = L.Dense(4, name="state_out")(L.Concatenate()([frame, state]))
    model, _ = calibrated_cell(([frame, state], [state_out]))
    with pytest.raises(ValueError, match="received the state state_out, which is float in the fi"):
        sat_tf.export_tflite(model, path, float_head=True)
    with pytest.raises(ValueError, match="softmax=True: received"):
        sat_tf.export_tflite(model, path, softmax=True)


def test_calibration_alone_gives_a_buffer_one_grid_until_training(path):
    policy = sat_tf.BitPolicy.mobile(8, input_type="int8")
    model = calibrated(keyword_net(), policy, rows())
    assert sat_tf.export_tflite(model, path, states=STATES).states == STATES
    assert sat_tf.export_tflite(model, path).states == {}
    level = model.get_layer("quant_window").output_variables["clipping_level"]
    level.assign(1.25 * level)  # as training does
    with pytest.raises(ValueError, match=re.escape(f"BitPolicy(states={STATES!r}), and call")):
        sat_tf.export_tflite(model, path, states=STATES)
