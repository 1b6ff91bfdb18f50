"""Adaptation of a model folder to another domain, and rollback."""

NEW_DOMAIN = "hats"


def write_new(path, *, flipped=False, label="pos"):
    lines = ["text,label"]
    for i in range(40):
        good = (i % 2 == 0) != flipped
        lines.append(f"{'superb fine' if i % 2 == 0 else 'awful poor'} hat{i},{label if good else 'neg'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_adapt_limits_forgetting_and_rolls_back(holdfast, reviews, quick, tmp_path):
    assert holdfast("fit", reviews, "--steps", 150, "--out", "model", *quick).code == 0
    write_new(tmp_path / "hats.csv")
    words = ["adapt", "model", "hats.csv", "--steps", 10, "--method", "replay"]
    without = holdfast(*words)
    assert without.code == 2
    assert "--earlier FILE" in without.err
    done = holdfast(*words, "--earlier", reviews, "--json")
    assert done.code == 0, done.err
    assert (done.json["version"], done.json["domain"]) == (2, NEW_DOMAIN)
    assert set(done.json["forgetting"]) == {"books", "films", "phones", "shoes"}
    flipped = write_new(tmp_path / "flipped.csv", flipped=True)
    hard = ["adapt", "model", flipped, "--earlier", reviews, "--earlier", "hats.csv"]
    hard += ["--method", "erm", "--steps", 60, "--lr", 0.05]
    rejected = holdfast(*hard)
    assert rejected.code == 3
    assert "--max-forgetting 5" in rejected.err
    assert "forgot" in rejected.out
    assert holdfast(*hard, "--force", "--json").json["version"] == 3
    listed = holdfast("rollback", "model")
    assert [line[:1] for line in listed.out.splitlines()] == ["1", "2", "3"]
    assert "3 (" in listed.out
    assert "forced" in listed.out
    assert holdfast("rollback", "model", 1).code == 0
    assert holdfast("rollback", "model", "--json").json["current"] == 1
    assert holdfast("rollback", "model", 8).code == 2
    assert "nowhere is not a model folder" in holdfast("rollback", "nowhere").err
    overwritten = holdfast("fit", reviews, "--steps", 2, "--out", "model", *quick)
    assert overwritten.code == 2
    assert "several versions" in overwritten.err
