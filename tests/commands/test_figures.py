import pytest

from sat_tf.commands import main
from tests.commands.light import told_without_tensorflow


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        (["--help"], 0, ["sat-tf figures table_s1 figure2a --out figures"]),
        (["--list"], 0, ["figure2a", "Table S1", "equation13"]),
        (["--list", "figure_s3"], 0, ["Figure S3"]),
        (
            ["figure2", "tables1"],
            2,
            ["3 problems", "mean figure2a?", "mean table_s1?", "--out DIR"],
        ),
        (["figure_s1"], 2, ["received no --out"]),
        (["--out", "x", "--seed", "-1"], 2, ["--seed"]),
        (["--out", "x", "--seed", "1.5"], 2, ["expected an integer in [0, 4294967296)"]),
        (["--out", "taken"], 2, ["--out: received taken, which is a file"]),
        (["--out", "taken/deeper"], 2, ["which cannot be created"]),
    ],
)
def test_what_draws_nothing_loads_no_tensorflow(arguments, status, texts, tmp_path):
    (tmp_path / "taken").write_text("")
    told = told_without_tensorflow("figures", *arguments, status=status, cwd=tmp_path)
    for text in texts:
        assert text in told
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_figures_are_drawn_and_their_claims_told(tmp_path, capsys):
    out = tmp_path / "new" / "figures"
    assert main.main(["figures", "figure_s1", "--out", str(out), "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "Figure S1: the sigmoid and its derivative" in told
    assert "agrees" in told
    assert sorted(path.name for path in out.iterdir()) == [
        "figure_s1.csv",
        "figure_s1.png",
        "figure_s1.svg",
        "index.html",
    ]
