"""Pages have the figures of the result files, and so has the README, which is written by hand.

Sentences of the documentation that say more than a figure are held against the files here, too.
"""

import ast
import pathlib
import re
import shutil
import statistics

import pytest

from benchmarks import tables
from benchmarks.rows import write_csv
from benchmarks.tables import at_best_rate, filled, rows
from benchmarks.tables import row as row_of

_ROOT = pathlib.Path(__file__).parents[1]
_README = " ".join((_ROOT / "README.md").read_text(encoding="utf-8").split())
_PAGES = sorted((_ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("path", _PAGES, ids=lambda path: path.stem)
def test_a_page_has_whole_tables_and_no_template(path):
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"\{[{%]", page)
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        lines = [re.sub(r"`[^`]*`|\\\|", "", line) for line in table.splitlines()]
        assert len({line.count("|") for line in lines}) == 1, table
        assert len(lines) > 2, table


@pytest.mark.essential
def test_pages_are_what_make_tables_renders():
    for path, text in tables.pages():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `make tables`"


def test_a_figure_that_changes_changes_on_its_page_and_lines_end_in_one_way(tmp_path, monkeypatch):
    write_csv([{"model": "a", "bits": 4}], tmp_path / "new.csv")
    for path in (tmp_path / "new.csv", *(_ROOT / "benchmarks" / "results").glob("*.csv")):
        assert b"\r" not in path.read_bytes(), path.name
    results = tmp_path / "results"
    shutil.copytree(_ROOT / "benchmarks" / "results", results)
    monkeypatch.setattr(tables, "_RESULTS", results)
    page = (_ROOT / "benchmarks" / "pages" / "measurements" / "training.md").read_text()
    before = filled(page)
    path = results / "graph_cost.csv"
    path.write_text(path.read_text().replace("135.74", "777.77") + "a new row,1,2,3,4,5\n")
    assert "| converter | 2.44 | 11.34 | 34.03 | 135.74 | 1.14 |" in before
    assert "| converter | 2.44 | 11.34 | 34.03 | 777.77 | 1.14 |" in filled(page)
    assert "| a new row | 1 | 2 | 3 | 4 | 5 |" in filled(page)


_IN_README = """
{% macro mean(method, bits) %}{{ rows("peers", method=method, bits=bits)|numbers("top1")|mean|decimals(1) }}{% endmacro %}
{% macro means(method, strong="") %}{% for bits in "432" %} {{ strong }}{{ mean(method, bits) }}{{ strong }} |{% endfor %}{% endmacro %}
three float models ({{ mean("float", "32") }} %)
TFMOT at 8 bits has {{ mean("TFMOT 8-bit", "8") }} %
| TFMOT, experimental n bits, every tensor |{{ means("TFMOT n-bit") }}
| litert-quantizer 0.11, no training, 8-bit activations (float streams: {{ mean("litert-quantizer; dynamic", "4") }}) | {{ mean("litert-quantizer", "4") }} | | |
| QKeras, its best settings |{{ means("QKeras") }}
| QKeras, distilled |{{ means("QKeras; distilled") }}
| sat-tf, its default policy |{{ means("sat-tf; not distilled") }}
| **sat-tf, its default policy, distilled** |{{ means("sat-tf", "**") }}
{% set methods = rows("methods_on_glyphs") %}
| sat-tf, `weight_quantizer="l1"`, distilled, its best rates |
{%- for bits in (4, 3, 2) %} {{ at_best_rate(methods, "L1 weights + CG-PACT", bits)|numbers("top1")|mean|decimals(1) }} |{% endfor +%}
| sat-tf, the same from a reconstruction (more steps) |{{ means("sat-tf; reconstructed") }}
{% for ours in rows("latency", file="sat-tf w4a4", kernels="XNNPACK", threads="1") if ours["times TFMOT"] %}
{% set of_float = row("latency", model=ours.model, file="float", kernels="XNNPACK", threads="1") %}
| {{ models[ours.model] }} | {{ ours["gzip, times TFMOT"]|decimals(2) }} | {{ ours|ratio("times TFMOT") }} | {{ of_float["times TFMOT"]|decimals(1) }} |
{% endfor %}
"""


@pytest.mark.parametrize("line", [*filter(None, filled(_IN_README).splitlines())])
def test_the_readme_has_the_figures_of_the_files(line):
    assert line.strip() in _README


_EXACT = {
    "codes differing": "allocated_weights architectures c_api compressed_files keras3_on_glyphs web",
    "codes_differing": "adaptive_bits methods_on_glyphs reconstruction reconstruction_of_packages",
    "not by the rules": "other_tools",
    "outputs differing from LiteRT": "web",
}


@pytest.mark.parametrize("column", _EXACT)
def test_no_code_of_these_files_differs(column):
    for name in _EXACT[column].split():
        assert {row[column] for row in rows(name)} <= {"0", ""}, name


def test_what_is_simulated_of_arm_is_what_runs_there():
    for file in rows("arm"):
        real = {file[name] for name in ("NEON", "dot product", "matrix (i8mm)")}
        assert real == {file["Arm, simulated"]}, file
        assert file["x86"] == "0"
        # A file makes no claim on tensors behind float means, and they need not differ.
        assert file["portable"] == "False" or file["Arm, simulated"] == "0"
        assert file["pack"] != "int4" or file["portable"] == "False"


def test_no_pretrained_model_ends_below_its_start_nor_a_reconstruction_03_points_below_its():
    assert all(float(row["trained"]) >= float(row["start"]) for row in rows("pretrained"))
    for fitted in rows("reconstruction", method="reconstructed"):
        same = {name: fitted[name] for name in ("task", "bits", "seed")}
        calibrated = row_of("reconstruction", method="calibrated", **same)
        # Images that the fit holds out decide what is kept; other examples are counted here. What
        # is fitted is the float model, which calibration alone is above by luck.
        least = min(float(calibrated["top1"]), float(fitted["float"])) - 0.3
        assert float(fitted["top1"]) >= least, fitted


def test_means_are_of_three_seeds():
    all_methods = rows("methods_on_glyphs")
    for method, bits in {(row["method"], int(row["bits"])) for row in all_methods}:
        assert len(at_best_rate(all_methods, method, bits)) == 3
        tried = rows("methods_on_glyphs", method=method, bits=str(bits), seed="0")
        assert len(tried) >= 3  # learning rates
    for name, columns in (
        ("adaptive_bits", ("grid", "training", "bits")),
        ("allocated_weights", ("bits", "chosen by")),
        ("peers", ("method", "bits")),
    ):
        cases = [tuple(row[column] for column in columns) for row in rows(name)]
        assert {cases.count(case) for case in cases} == {3}, name


def _table_of_peers(name):
    """A table of what `benchmarks/peers.py` runs each method by, read without its imports."""
    source = (_ROOT / "benchmarks" / "peers.py").read_text()
    (table,) = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
    )
    return ast.literal_eval(table)


@pytest.mark.parametrize("method", ["QKeras", "QKeras; distilled", "TFMOT clusters; distilled"])
def test_other_tools_run_by_the_settings_that_their_search_found(method):
    rates, temperatures = map(_table_of_peers, ("_BEST_RATES", "_BEST_TEMPERATURES"))
    teachers = {*map(str, _table_of_peers("_DISTILLED"))} if method in temperatures else {""}
    for bits in "432":
        searched = rows("peers_search", method=method, bits=bits)
        assert {row["temperature"] for row in searched} == teachers
        best = max(searched, key=lambda row: float(row["chosen_on"]))
        assert rates[method][int(bits)] == float(best["rate"])
        assert str(temperatures.get(method, {}).get(int(bits), "")) == best["temperature"]
        for teacher in teachers:
            found = {
                float(row["rate"]): float(row["chosen_on"])
                for row in searched
                if row["temperature"] == teacher
            }
            assert min(found) < max(found, key=found.__getitem__) < max(found)
        run = row_of("peers", method=method, bits=bits, seed="0")["chosen_on"]
        assert run == best["chosen_on"]
    for table in (rates, temperatures):
        of_v3 = {name.replace("qkeras-v3", "QKeras"): best for name, best in table.items()}
        assert of_v3 == {name: best for name, best in table.items() if "qkeras-v3" not in name}


def test_no_choice_of_bits_uses_more_than_the_same_everywhere():
    for chosen in rows("allocated_weights"):
        wanted = {"seed": chosen["seed"], "bits": chosen["bits"], "chosen by": "uniform"}
        assert int(chosen["bytes"]) <= int(row_of("allocated_weights", **wanted)["bytes"])


def test_with_a_teacher_sat_tf_leads_at_every_number_of_bits():
    def mean(method, bits):
        found = rows("peers", method=method, bits=bits)
        return statistics.mean(float(row["top1"]) for row in found)

    for bits in "432":
        assert mean("sat-tf", bits) > mean("QKeras; distilled", bits)
    assert mean("sat-tf", "4") > mean("float", "32")
