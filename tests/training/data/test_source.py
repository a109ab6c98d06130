import pytest
import tensorflow as tf

from sat_tf.messages import ReadingError
from sat_tf.training.data.source import FirstError


def fail(first, error):
    with first.kept():
        raise error


def test_the_first_message_takes_the_place_of_tensorflows():
    first = FirstError()
    for message in ("mend a.jpg", "mend b.jpg"):
        with pytest.raises(ReadingError):
            fail(first, ReadingError(message))
    with pytest.raises(ReadingError, match=r"^mend a\.jpg$") as found, first.raised():
        raise tf.errors.UnknownError(None, None, "60 lines")
    assert found.value.__suppress_context__


def test_faults_that_are_no_data_are_left_alone():
    first = FirstError()
    with pytest.raises(AttributeError):
        fail(first, AttributeError("numpy"))
    with pytest.raises(tf.errors.UnknownError, match="60 lines"), first.raised():
        raise tf.errors.UnknownError(None, None, "60 lines")
