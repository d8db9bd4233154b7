"""The mutants of the C++ change one token or statement of the code, and neither its comments nor its directives."""

from types import ModuleType

import cpp_mutants
import mutants
import pytest

SMALL_SOURCE = """#include "a-b.h"  // 1 + 1
#define N 3
// x < 4
int f(std::vector<int> *x, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += (*x)[i] * 2;
    return std::max(sum, n);
}
"""


def test_a_small_file_has_exactly_these_mutants() -> None:
    made = list(cpp_mutants.make_mutants("small.cpp", SMALL_SOURCE))
    assert sorted((mutant.lines.start, mutant.after) for mutant in made) == [
        (5, "int sum = -1;"),
        (5, "int sum = 1;"),
        (6, "for (int i = -1; i < n; i++) sum += (*x)[i] * 2;"),
        (6, "for (int i = 0; i < n; i++) ;"),
        (6, "for (int i = 0; i < n; i++) sum += (*x)[i] * 1;"),
        (6, "for (int i = 0; i < n; i++) sum += (*x)[i] * 3;"),
        (6, "for (int i = 0; i < n; i++) sum += (*x)[i] + 2;"),
        (6, "for (int i = 0; i < n; i++) sum += (*x)[i] / 2;"),
        (6, "for (int i = 0; i < n; i++) sum -= (*x)[i] * 2;"),
        (6, "for (int i = 0; i < n; i++) sum = (*x)[i] * 2;"),
        (6, "for (int i = 0; i < n; i--) sum += (*x)[i] * 2;"),
        (6, "for (int i = 0; i <= n; i++) sum += (*x)[i] * 2;"),
        (6, "for (int i = 0; i > n; i++) sum += (*x)[i] * 2;"),
        (6, "for (int i = 1; i < n; i++) sum += (*x)[i] * 2;"),
        (7, "return std::min(sum, n);"),
    ]
    assert all(m.source != SMALL_SOURCE and m.source.count("\n") == SMALL_SOURCE.count("\n") for m in made)


def test_every_listed_equivalent_mutant_exists() -> None:
    for file, changes in cpp_mutants.EQUIVALENT_MUTANTS.items():
        source = (mutants.ROOT / cpp_mutants.COMPILED_DIR / file).read_text(encoding="utf-8")
        assert changes.keys() <= {mutant.after for mutant in cpp_mutants.make_mutants(file, source)}


@pytest.mark.parametrize(("script", "flag"), [(cpp_mutants, "--sample"), (mutants, "--sample"), (mutants, "--jobs")])
def test_zero_is_refused(script: ModuleType, flag: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main([flag, "0", "--list"])
