from sat_tf.commands import models


def test_operations_are_computed_on_one_thread_unless_another_number_is_set(monkeypatch):
    monkeypatch.setattr(models.os, "environ", {})
    models.compute_on_one_thread()
    assert models.os.environ == {"TF_NUM_INTRAOP_THREADS": "1"}
    models.os.environ["TF_NUM_INTRAOP_THREADS"] = "4"
    models.compute_on_one_thread()
    assert models.os.environ == {"TF_NUM_INTRAOP_THREADS": "4"}
