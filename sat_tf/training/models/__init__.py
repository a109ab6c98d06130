"""Float Keras image models, one family per module, and a table to build them by name.

Every family takes images (batch, image_size, image_size, 3) with values in [0, 255], not
standardized, to logits (batch, num_classes), and has these options:

- `image_size`: height and width of the images in pixels; 224 as published.
- `num_classes`: number of logits.
- `width_multiplier`: factor on the channel counts of convolutions; each is rounded to a multiple of
  8.
- `rectifier_max`: upper end of the rectifiers; None for none. As published, it is 6 in MobileNets
  and None in the others.
- `dropout`: share of the features in front of the classifier that training drops, in [0, 1).
- `seed`: makes the initial weights and the dropout repeatable; None draws fresh ones.

Options out of their range are an error that lists all of them.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any

from sat_tf.messages.validation import call_by_name
from sat_tf.training.models.mobilenet import mobilenet_v1, mobilenet_v2, mobilenet_v2_small
from sat_tf.training.models.resnet import preresnet50, resnet18, resnet50
from sat_tf.training.models.vgg import vgg16, vgg16_bn

__all__ = ["MODELS", "build"]
__all__ += ["mobilenet_v1", "mobilenet_v2", "mobilenet_v2_small"]
__all__ += ["preresnet50", "resnet18", "resnet50", "vgg16", "vgg16_bn"]

_FAMILIES = (
    *(mobilenet_v1, mobilenet_v2, mobilenet_v2_small),
    *(resnet18, resnet50, preresnet50, vgg16, vgg16_bn),
)
MODELS: Mapping[str, Callable[..., Any]] = types.MappingProxyType(
    {family.__name__: family for family in _FAMILIES}
)


def build(name: str, **arguments: Any) -> Any:
    """Builds a model by the name of its family.

    Args:
        name: a key of `MODELS`.
        **arguments: what the family's function takes; its defaults hold for the rest.

    Returns:
        A float `tf_keras.Model` from images with values in [0, 255] to logits.

    Raises:
        ValueError: the family or some argument is unknown, or an argument is out of its range.

    Example:
        >>> build("mobilenet_v2", image_size=32, num_classes=10, seed=0).output_shape
        (None, 10)
        >>> build("mobilenet_v3")
        Traceback (most recent call last):
        ValueError: 'mobilenet_v3': expected the name of a model. Did you mean mobilenet_v2?
    """
    return call_by_name("model", MODELS, name, arguments)
