"""Templates: filled as one text for every tokenizer, without losing the mask or words of the template."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.template import PRESETS, Template, shares
from holdfast.nn.backbones.text import TextEncoder
from tests import tiny

SOFT = "{text} {soft:was it good} {mask} , {text2}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("tiny")
    return {
        "pieces": tiny.tiny_masked(base / "bert"),
        "bytes": tiny.tiny_bytes(base / "bytes"),
        "roberta": tiny.tiny_masked(base / "roberta", "roberta"),
        "mpnet": tiny.tiny_masked(base / "mpnet", "mpnet"),
        "distilbert": tiny.tiny_masked(base / "distilbert", "distilbert"),
        "electra": tiny.tiny_masked(base / "electra", "electra"),
    }


def build(folder, template, **options) -> TextEncoder:
    return TextEncoder.build(list, name=str(folder), template=template, length=options.pop("length", 48), **options)


def rows(encoder, examples) -> list[list[int]]:
    store = encoder.prepare(examples)
    result = [store.take(torch.tensor([i])) for i in range(len(examples))]
    return [x.ids[0].tolist() for x in result]


@pytest.mark.parametrize("kind", ["pieces", "bytes"])
def test_short_texts_equal_the_tokenized_sentence(folders, kind):
    encoder = build(folders[kind], "It was {mask} . {text}")
    token = encoder.tokenizer.mask_token
    assert encoder.pooling == "mask"
    texts = ["the food was good", "bad", "", "  a film!  "]
    expected = [encoder.tokenizer(f"It was {token} . {text.strip()}")["input_ids"] for text in texts]
    assert rows(encoder, texts) == expected
    pair = build(folders[kind], "nli")
    whole = pair.tokenizer(f"good ? {token} , bad")["input_ids"]
    assert rows(pair, [("good", "bad")]) == [whole]
    assert pair.prepare([("good", "bad")]).take(torch.tensor([0])).types is None  # one sentence, one segment


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pieces", "bytes"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_only_the_texts_are_cut(folders, kind, data):
    name = data.draw(st.sampled_from([*PRESETS]))
    encoder = build(folders[kind], name, length=60)
    words = st.text(alphabet=" \tabg.é漢🙂[]<>", max_size=120) | st.lists(
        st.sampled_from(["good", "bad", encoder.tokenizer.mask_token, "  "]), max_size=60
    ).map(" ".join)
    texts = [data.draw(words) for _ in range(encoder.template.texts)]
    (row,) = rows(encoder, [texts[0] if len(texts) == 1 else tuple(texts)])
    (blank,) = rows(encoder, ["" if len(texts) == 1 else ("", "")])
    assert len(row) <= 60
    assert row.count(encoder.tokenizer.mask_token_id) == 1
    left, space = iter(row), encoder.tokenizer.convert_tokens_to_ids("Ġ")  # before an empty text, a space is a token
    assert all(token in left for token in blank if token != space), "the template's tokens are there, in their order"


def test_longest_text_is_cut_first_at_its_end(folders):
    encoder = build(folders["pieces"], "{text} was {mask} a {text2}", length=15)  # five tokens belong to the template
    good, bad = tiny.VOCABULARY.index("good"), tiny.VOCABULARY.index("bad")
    for sizes, stats in [((40, 40), (5, 5)), ((40, 2), (8, 2)), ((3, 40), (3, 7)), ((4, 4), (4, 4))]:
        (row,) = rows(encoder, [("good " * sizes[0], "bad " * sizes[1])])
        assert (row.count(good), row.count(bad)) == stats
    (row,) = rows(encoder, [("film " + "good " * 40, "bad")])
    assert row[1] == tiny.VOCABULARY.index("film")
    assert shares({"text": 9, "text2": 0}, 4) == {"text": 4, "text2": 0}


def test_mask_inside_the_text_is_removed(folders):
    encoder = build(folders["pieces"], "{text} was {mask}").eval()
    x = encoder.prepare(["a [MASK] film", "a film"])
    assert torch.equal(x.take(torch.tensor([0])).ids, x.take(torch.tensor([1])).ids)


@pytest.mark.parametrize("family", ["pieces", "roberta", "mpnet", "distilbert", "electra", "bytes"])
def test_soft_tokens_start_as_their_words_and_train(folders, family):
    soft, hard = build(folders[family], SOFT), build(folders[family], SOFT.replace("{soft:was it good}", "was it good"))
    pairs = [("a film", "good"), ("food " * 40, "bad"), ("", "")]
    result = [e.eval()(e.prepare(pairs).take(torch.arange(3))) for e in (soft, hard)]
    assert_close(result[0], result[1], atol=1e-5, rtol=1e-5)
    assert soft.soft.num_embeddings == len(soft.template.soft) >= 3
    assert any(p is soft.soft.weight for p in soft.blocks()[0].parameters())
    result[0].square().sum().backward()
    assert bool((soft.soft.weight.grad.abs().sum(1) > 0).all())
    with torch.no_grad():
        soft.soft.weight *= 2
    assert float((soft(soft.prepare(pairs).take(torch.arange(3))) - result[0]).detach().abs().max()) > 1e-3


def test_soft_preset_has_eight_tokens(folders):
    words = PRESETS["nli-soft"].partition("{soft:")[2].partition("}")[0].split()
    assert len(words) == 8
    encoder = build(folders["pieces"], "nli-soft", length=66)
    assert len(encoder.template.soft) == encoder.soft.num_embeddings


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("It was . {text}", "must have one"),
        ("{mask} {mask} {text}", "must have one"),
        ("{mask} {text} {text}", "must have one"),
        ("It was {mask}", "must have one"),
        ("{mask} {txt}", r"\{txt\}"),
        ("{mask} {text} {", "unmatched brace"),
        ("{text}{soft:a} {mask}", "needs a space"),
        ("{text} {soft:} {mask}", r"\{soft:\}"),
        ("[MASK] {text} {mask}", "as a word"),
        ("sentiment", "unknown template"),
        (["{text} ? {mask}", " {text2}"], "encoder.template"),
    ],
)
def test_bad_templates(folders, template, pattern):
    with pytest.raises(BadInput, match=pattern):
        build(folders["pieces"], template)


def test_wrong_kind_of_texts_and_short_length_raise(folders):
    with pytest.raises(BadInput, match=r"single texts .* pairs"):
        build(folders["pieces"], "sentiment-0").prepare([("a", "b")])
    with pytest.raises(BadInput, match=r"pairs .* single texts"):
        build(folders["pieces"], "nli").prepare(["a"])
    encoder = build(folders["pieces"], "{text} {mask}", length=4)
    assert [len(r) for r in rows(encoder, ["good " * 9])] == [4]
    with pytest.raises(BadInput, match="4 to 66"):
        build(folders["pieces"], "{text} {mask}", length=3)
    tokenizer = encoder.tokenizer
    assert Template("{text} {mask}", tokenizer, vocabulary=9).fixed == 3
