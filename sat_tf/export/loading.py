"""The check that LiteRT loads and runs a file, before it is handed over."""

import numpy as np

from sat_tf.export.runtime import USUAL_RUNTIMES, Runtime


def check_loading(content: bytes, *image_shapes: tuple[int, ...]) -> None:
    """Runs a black image through a file, with and without XNNPACK.

    Args:
        content: the file.
        *image_shapes: of one image, for each input.

    Raises:
        ValueError: a runtime does not load it, does not run it, or its output is not finite; names
            the runtime.
    """
    for name in USUAL_RUNTIMES:
        try:
            runtime = Runtime(content, name, keep_tensors=False)
            output = runtime.run(runtime.zeros(image_shapes))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{name}: received a model whose file LiteRT does not run ({error}), expected one "
                "that it does; export with pack='none', or install the ai-edge-litert that sat-tf "
                "was tested with."
            ) from error
        if not np.all(np.isfinite(output)):
            raise ValueError(
                f"{name}: received a model whose output for a black image is not finite, expected "
                "numbers; go back to an earlier checkpoint."
            )
