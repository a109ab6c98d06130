import json

import pytest

from sat_tf.export.lowering.packing import PACKINGS, FileSettings

OTHER = FileSettings(float_head=True, pack="int4", softmax=True, resizable=True)


@pytest.mark.parametrize("settings", [*map(FileSettings().with_pack, PACKINGS), OTHER])
def test_a_file_gives_back_its_settings(settings):
    assert FileSettings.of_file(json.loads(settings.to_json({})), "model.tflite") == settings


def test_what_a_file_does_not_say_is_as_it_was_by_default_then():
    found = FileSettings.of_file({"version": "0.1", "float_head": True}, "model.tflite")
    assert found == FileSettings(float_head=True, pack="none")


def test_an_earlier_file_has_its_1x1_convolutions_as_convolutions_and_says_the_same_again():
    entry = {**json.loads(FileSettings(pack="none").to_json({})), "pack": "int4"}
    found = FileSettings.of_file(entry, "model.tflite")
    assert found.pack != "int4"
    assert json.loads(found.to_json({})) == entry


@pytest.mark.parametrize("found", [None, {}, {"float_head": True, "pack": "int3"}])
def test_a_file_with_other_settings_is_not_ours(found):
    with pytest.raises(ValueError, match=r"model.tflite: .* did not write, expected one"):
        FileSettings.of_file(found, "model.tflite")


def test_all_that_is_no_setting_is_named_at_once():
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*softmax: received 'yes'(.|\n)*int4"):
        FileSettings(softmax="yes", pack="in4")
