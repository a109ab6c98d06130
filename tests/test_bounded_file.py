from sat_tf.files import read_text


def test_a_text_is_read_without_its_mark_and_with_plain_line_breaks(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_text(tmp_path / "a.txt") == "one\ntwo\n"
