"""The train_tokenizer stage: a SentencePiece model of a recipe's texts."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from espnet3.components.data.files import write_atomic, write_text_atomic
from espnet3.components.instantiate import as_dict, load_function
from espnet3.components.instantiate import require as needed
from espnet3.parallel.checks import Whole
from espnet3.systems.configs.mistakes import check_block, require, wrong

logger = logging.getLogger(__name__)

_OPTIONS = {"model_type": "bpe", "character_coverage": 1.0, "user_defined_symbols": []}
TOKENIZER_KEYS = frozenset({"text_builder", "vocab_size", "save_path"})
_KEYS = dict.fromkeys((*sorted(TOKENIZER_KEYS), *_OPTIONS, "train_file")) | {
    "vocab_size": Whole(least=1, example="5000")
}


def train_tokenizer(config: Any) -> Path:
    """Train a tokenizer, unless it is there, of the same texts and settings.

    The config has `tokenizer`:

    - `text_builder`: `func`, the dotted path of a function, and its arguments; it returns texts, or the path of a file
      with a text on each line;
    - `vocab_size`, and `save_path`, the folder for the files;
    - `model_type` (optional): "bpe", "unigram", "char" or "word"; `character_coverage` (1.0) and
      `user_defined_symbols` (optional), as SentencePiece has them;
    - `train_file` (optional): where the texts are kept as well.

    Return the model, `<save_path>/<model_type>.model`; beside it are `<model_type>.vocab` and `tokens.txt`, which
    begins with `<blank>` and `<unk>` and ends with `<sos/eos>`. A wrong or missing key is a ConfigError.
    """
    block = as_dict(config).get("tokenizer") or {}
    require(block, "training", sorted(TOKENIZER_KEYS), inside="tokenizer")
    check_block(block, "training", "tokenizer", _KEYS)
    settings = {**_OPTIONS, **{key: block[key] for key in ("vocab_size", *_OPTIONS) if key in block}}
    texts = _texts(dict(block["text_builder"]))
    made_of = {**settings, "texts": hashlib.sha256("\n".join(texts).encode()).hexdigest()}
    folder, kind = Path(block["save_path"]), settings["model_type"]
    names = (f"{kind}.model", f"{kind}.vocab", "tokens.txt", "tokenizer.json")
    model_file, vocabulary, token_list, facts = files = [folder / name for name in names]
    if all(path.is_file() for path in files) and json.loads(facts.read_text()) == made_of:
        logger.info("train_tokenizer: %s is there, of the same texts", folder)
        return model_file
    if block.get("train_file"):
        write_text_atomic(block["train_file"], "".join(f"{text}\n" for text in texts))
    model = _model(texts, settings)
    pieces = needed("sentencepiece", "train", "a tokenizer").SentencePieceProcessor(model_proto=model)
    found = [(pieces.id_to_piece(at), pieces.get_score(at)) for at in range(pieces.get_piece_size())]
    tokens = ["<blank>", "<unk>", *(name for name, _ in found[3:]), "<sos/eos>"]
    write_atomic(model_file, lambda file: file.write(model))
    write_text_atomic(vocabulary, "".join(f"{name}\t{score:g}\n" for name, score in found))
    write_text_atomic(token_list, "".join(f"{token}\n" for token in tokens))
    write_text_atomic(facts, json.dumps(made_of) + "\n")
    logger.info("train_tokenizer: %d pieces of %d texts in %s", len(found), len(texts), folder)
    return model_file


def _texts(builder: dict[str, Any]) -> list[str]:
    func = builder.pop("func", None) or builder.pop("_target_", None)
    if not isinstance(func, str):
        said = "is missing: the dotted path of a function that returns texts"
        raise wrong("training", "tokenizer.text_builder.func", said)
    built = load_function(func, "tokenizer.text_builder.func")(**builder)
    if isinstance(built, (str, os.PathLike)):
        return Path(built).read_text(encoding="utf-8").splitlines()
    if not isinstance(built, Iterable):
        raise TypeError(f"{func} returned a {type(built).__name__}: it must return texts, or a file's path")
    return [str(text) for text in built]


def _model(texts: list[str], settings: dict[str, Any]) -> bytes:
    if not any(text.strip() for text in texts):
        raise wrong("training", "tokenizer.text_builder", "gives no text: is the dataset there?")
    written = io.BytesIO()
    try:
        needed("sentencepiece", "train", "a tokenizer").SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=written, minloglevel=2, **settings
        )
    except (OSError, RuntimeError, ValueError) as error:  # such as more pieces than these texts have
        said = f"= {settings['vocab_size']}: SentencePiece refuses: {str(error).rpartition('] ')[2].strip()}"
        raise wrong("training", "tokenizer.vocab_size", said) from error
    return written.getvalue()
